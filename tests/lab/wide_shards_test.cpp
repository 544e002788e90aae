// SPDX-License-Identifier: Apache-2.0
// Shards of 32-bit tokens: llm.c's second layout, for vocabularies beyond 65,536.
#include <cstring>

#include "lab/stream/sequence_source.h"
#include "lab/support.h"
#include "lab/text/token_folder.h"

namespace rode::lab {
namespace {

TokenInfo wide_info(std::int64_t vocab_size) {
  return {.tokenizer = "wide", .vocab_size = vocab_size, .end_of_text = 0, .splits = {}};
}

TEST(WideShard, HasTheSecondLayoutOfLlmC) {
  const Scratch scratch;
  const std::vector<Token> tokens = {7, 65535, 65536, 151935, 0x7FFFFFFE};
  write_shard(scratch / "a.bin", tokens, kWideShard);
  const std::string bytes = read_file(scratch / "a.bin");
  ASSERT_EQ(bytes.size(), 1024U + 4 * tokens.size());
  std::int32_t header[256];
  std::memcpy(header, bytes.data(), sizeof(header));
  EXPECT_EQ(header[0], 20240801);
  EXPECT_EQ(header[1], 7);
  EXPECT_EQ(header[2], 5);
  EXPECT_EQ(TokenShard(scratch / "a.bin").tokens().copy(), tokens);
  std::string narrow = bytes;
  narrow[4] = 1;
  write_file(scratch / "bad.bin", narrow);
  EXPECT_MENTIONS(error_of([&] { const TokenShard shard(scratch / "bad.bin"); }),
                  "version 1; expected version 7 (uint32 tokens)");
  EXPECT_MENTIONS(error_of([&] { write_shard(scratch / "b.bin", tokens); }),
                  "token 65536 for a shard of 16-bit tokens");
  EXPECT_FALSE(std::filesystem::exists(scratch / "b.bin"));
}

TEST(WideShard, IsChosenByTheVocabulary) {
  for (const std::int64_t vocab_size : {std::int64_t{65536}, std::int64_t{65537}}) {
    const Scratch scratch;
    TokenFolderWriter writer(scratch.path(), wide_info(vocab_size), {"train", 10, false});
    const auto last = static_cast<Token>(vocab_size - 1);
    writer.append(std::vector<Token>(25, last));
    EXPECT_EQ(writer.finish().shards, 3);
    const TokenFolder folder(scratch.path(), "train");
    EXPECT_EQ(folder.shards()[2].tokens().copy(), std::vector<Token>(5, last));
    EXPECT_EQ(folder.shards()[0].tokens().width(), vocab_size > 65536 ? 4U : 2U);
    EXPECT_EQ(folder.note(), "");
    const ShardSequences sequences(TokenFolder(scratch.path(), "train"), 12, vocab_size);
    std::vector<std::int64_t> window(13);
    sequences.read(0, window);
    EXPECT_EQ(window, std::vector<std::int64_t>(13, vocab_size - 1));
    EXPECT_MENTIONS(error_of([&] {
                      const ShardSequences small(TokenFolder(scratch.path(), "train"), 12,
                                                 vocab_size - 1);
                    }),
                    "vocabulary");
  }
}

TEST(WideShard, ADamagedTokenIsNamedInItsBlock) {
  const Scratch scratch;
  TokenFolderWriter writer(scratch.path(), wide_info(151936), {"train", 100'000, false});
  writer.append(std::vector<Token>(50'000, 151000));
  EXPECT_TRUE(writer.finish().checksums);
  const std::size_t damaged = 1024 + 4 * 40'000;  // in the third block
  std::string bytes = read_file(scratch / "train_000000.bin");
  bytes[damaged] = static_cast<char>(bytes[damaged] ^ 1);
  write_file(scratch / "train_000000.bin", bytes);
  const TokenFolder folder(scratch.path(), "train");
  const TokenShard& shard = folder.shards()[0];
  shard.check(0, 32'000);
  EXPECT_MENTIONS(error_of([&] { shard.check(39'999, 2); }), "bytes 131072 to 196608");
}

}  // namespace
}  // namespace rode::lab
