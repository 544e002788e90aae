// SPDX-License-Identifier: Apache-2.0
// Token shards and their folders: layout, refusals, tokens.json.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <numeric>
#include <vector>

#include "lab/stream/sequence_source.h"
#include "lab/support.h"
#include "lab/text/text_reader.h"
#include "lab/text/token_folder.h"

namespace rode::lab {
namespace {

std::vector<Token> counting(std::size_t n) {
  std::vector<Token> tokens(n);
  std::iota(tokens.begin(), tokens.end(), Token{0});
  return tokens;
}

TokenInfo bytes_info() {
  TokenInfo info;
  info.tokenizer = "bytes";
  info.vocab_size = 257;
  info.end_of_text = 256;
  return info;
}

TEST(TokenShard, HasTheLayoutOfLlmC) {
  const Scratch scratch;
  write_shard(scratch / "a.bin", std::vector<Token>{7, 65535, 2});
  const std::string bytes = read_file(scratch / "a.bin");
  ASSERT_EQ(bytes.size(), 1024U + 6U);
  std::int32_t header[256];
  std::memcpy(header, bytes.data(), sizeof(header));
  EXPECT_EQ(header[0], 20240520);
  EXPECT_EQ(header[1], 1);
  EXPECT_EQ(header[2], 3);
  EXPECT_EQ(header[3], 0);
  const TokenShard shard(scratch / "a.bin");
  EXPECT_EQ(shard.tokens().copy(), (std::vector<Token>{7, 65535, 2}));
}

TEST(TokenShard, RefusesAFileThatIsNotOne) {
  const Scratch scratch;
  write_shard(scratch / "good.bin", counting(10));
  const std::string good = read_file(scratch / "good.bin");
  const auto message = [&](const std::string& bytes) {
    write_file(scratch / "bad.bin", bytes);
    return error_of([&] { const TokenShard shard(scratch / "bad.bin"); });
  };
  const auto patched = [&](std::size_t at, std::int32_t value) {
    std::string bytes = good;
    std::memcpy(bytes.data() + at, &value, sizeof(value));
    return bytes;
  };
  EXPECT_MENTIONS(message(""), "0 bytes");
  EXPECT_MENTIONS(message(good.substr(0, 1000)), "header of 1024");
  EXPECT_MENTIONS(message(patched(0, 7)), "begins with 7");
  EXPECT_MENTIONS(message(patched(4, 2)), "version 2");
  EXPECT_MENTIONS(message(patched(8, -1)), "claims -1 tokens");
  EXPECT_MENTIONS(message(patched(8, 11)), "claims 11 tokens");
  EXPECT_MENTIONS(message(good.substr(0, good.size() - 1)), "19 bytes follow");
  EXPECT_MENTIONS(message(good + "x"), "21 bytes follow");
  EXPECT_MENTIONS(message(good + "x"), "rode data tokens");
  EXPECT_MENTIONS(message(good + "x"), "bad.bin");
}

TEST(TokenFolder, CutsIntoShardsAndReadsThemBack) {
  const Scratch scratch;
  const std::vector<Token> tokens = counting(25);
  TokenFolderWriter writer(scratch.path(), bytes_info(), {"train", 10, false});
  writer.append(std::span(tokens).first(7));
  writer.append(std::span(tokens).subspan(7));
  EXPECT_EQ(writer.finish().shards, 3);
  const TokenFolder folder(scratch.path(), "train");
  std::vector<Token> back;
  for (const TokenShard& shard : folder.shards()) {
    const std::vector<Token> part = shard.tokens().copy();
    back.insert(back.end(), part.begin(), part.end());
  }
  EXPECT_EQ(back, tokens);
  EXPECT_EQ(folder.info()->tokenizer, "bytes");
}

TEST(TokenFolder, KeepsSplitsApartAndNamesLikeOthers) {
  EXPECT_EQ(split_of("fineweb_val_000000.bin"), "valid");
  EXPECT_EQ(split_of("fineweb_train_000012.bin"), "train");
  EXPECT_EQ(split_of("training.bin"), "");
  const Scratch scratch;
  for (const char* split : {"train", "valid"}) {
    TokenFolderWriter writer(scratch.path(), bytes_info(), {split, 10, false});
    writer.append(counting(split[0] == 't' ? 12 : 3));
    writer.finish();
  }
  EXPECT_EQ(TokenFolder(scratch.path(), "train").tokens(), 12U);
  EXPECT_EQ(TokenFolder(scratch.path(), "valid").tokens(), 3U);
  EXPECT_MENTIONS(error_of([&] { const TokenFolder folder(scratch.path(), "test"); }),
                  "no shard of the split 'test'");
}

TEST(TokenFolder, NoticesAMissingShardAndAnInterruptedWriter) {
  const Scratch scratch;
  {
    TokenFolderWriter writer(scratch.path(), bytes_info(), {"train", 10, false});
    writer.append(counting(25));
    writer.finish();
  }
  std::filesystem::remove(scratch / "train_000001.bin");
  EXPECT_MENTIONS(error_of([&] { const TokenFolder folder(scratch.path(), "train"); }),
                  "records 3 of 25");
  // As finish() would leave it, ended between its two descriptions.
  TokenInfo unrecorded = bytes_info();
  write_token_info(scratch.path(), unrecorded);
  EXPECT_MENTIONS(error_of([&] { const TokenFolder folder(scratch.path(), "train"); }),
                  "interrupted");
}

TEST(TokenFolder, DoesNotMixTokenizersNorOverwriteUnasked) {
  const Scratch scratch;
  {
    TokenFolderWriter writer(scratch.path(), bytes_info(), {"train", 10, false});
    writer.append(counting(3));
    writer.finish();
  }
  TokenInfo other = bytes_info();
  other.tokenizer = "gpt2";
  EXPECT_MENTIONS(
      error_of([&] { TokenFolderWriter writer(scratch.path(), other, {"valid", 10, false}); }),
      "holds tokens of 'bytes'");
  EXPECT_MENTIONS(error_of([&] {
                    TokenFolderWriter writer(scratch.path(), bytes_info(), {"train", 10, false});
                  }),
                  "--overwrite");
}

// Every file below a folder, with its contents.
std::map<std::string, std::string> contents(const std::filesystem::path& folder) {
  std::map<std::string, std::string> found;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    found[entry.path().string()] = entry.is_regular_file() ? read_file(entry.path()) : "folder";
  }
  return found;
}

TEST(TokenFolder, LeavesNothingWhereWritingFails) {
  const Scratch scratch;
  const std::filesystem::path fresh = scratch / "a/b";
  const auto fails = [&](const std::filesystem::path& folder, bool overwrite) {
    TokenFolderWriter writer(folder, bytes_info(), {"train", 10, overwrite});
    writer.append(counting(25));  // never finished
  };
  fails(fresh, false);
  EXPECT_TRUE(contents(scratch.path()).empty());
  EXPECT_MENTIONS(
      error_of([&] { TokenFolderWriter(fresh, bytes_info(), {"train", 10, false}).finish(); }),
      "no tokens for the split 'train'");
  EXPECT_TRUE(contents(scratch.path()).empty());
  {
    TokenFolderWriter writer(fresh, bytes_info(), {"train", 10, false});
    writer.append(counting(15));
    writer.finish();
  }
  const auto before = contents(scratch.path());
  fails(fresh, true);
  EXPECT_EQ(contents(scratch.path()), before);
  {
    TokenFolderWriter writer(fresh, bytes_info(), {"train", 10, true});
    writer.append(counting(5));
    writer.finish();
  }
  EXPECT_EQ(TokenFolder(fresh, "train").tokens(), 5U);
  EXPECT_EQ(contents(fresh).size(), 3U) << "one shard, its checksums and tokens.json";
}

TEST(TokenFolder, LeavesNothingWhereTheMoveFails) {
  const Scratch scratch;
  const std::filesystem::path fresh = scratch / "fresh";
  {
    TokenFolderWriter writer(fresh, bytes_info(), {"train", 10, false});
    writer.append(counting(25));
    std::filesystem::create_directory(fresh / kShardChecksums);  // its file cannot be written
    EXPECT_MENTIONS(error_of([&] { writer.finish(); }), std::string(kShardChecksums));
  }
  EXPECT_EQ(contents(fresh).size(), 1U) << "the folder that was in the way, and nothing of ours";
}

TEST(TokenFolder, ADamagedDescriptionOfTheOnlySplitIsReplacedWithIt) {
  for (const char* name : {kTokenInfo, "checksums.safetensors"}) {
    const Scratch scratch;
    const auto write = [&](const char* split, bool overwrite) {
      TokenFolderWriter writer(scratch.path(), bytes_info(), {split, 10, overwrite});
      writer.append(counting(5));
      writer.finish();
    };
    write("train", false);
    std::string bytes = read_file(scratch.path() / name);
    bytes[bytes.size() / 2] ^= 1;
    write_file(scratch.path() / name, bytes);
    EXPECT_NE(error_of([&] { write("valid", false); }), "") << "it tells of another split";
    write("train", true);
    EXPECT_EQ(TokenFolder(scratch.path(), "train").tokens(), 5U);
  }
}

TEST(TokenFolder, ComparesTheVocabularyWithTheModel) {
  const Scratch scratch;
  TokenFolderWriter writer(scratch.path(), bytes_info(), {"train", 10, false});
  writer.append(counting(5));
  writer.finish();
  const TokenFolder folder(scratch.path(), "train");
  folder.require_vocab(257);
  EXPECT_MENTIONS(error_of([&] { folder.require_vocab(256); }), "set vocab_size = 257");
}

TEST(TokenFolder, RefusesADamagedDescription) {
  const Scratch scratch;
  write_shard(scratch / "train_000000.bin", counting(5));
  for (const char* text : {"", "{", "[]", R"({"format": "other"})",
                           R"({"format": "rode-tokens-1", "tokenizer": 3})"}) {
    write_file(scratch / "tokens.json", text);
    EXPECT_MENTIONS(error_of([&] { const TokenFolder folder(scratch.path(), "train"); }),
                    "is not a description of tokens");
  }
}

// Two shards of which the first has several blocks.
void write_two_shards(const Scratch& scratch) {
  TokenFolderWriter writer(scratch.path(), bytes_info(), {"train", 200'000, false});
  for (Token i = 0; i < 200; ++i) writer.append(std::vector<Token>(1250, i));
  EXPECT_TRUE(writer.finish().checksums);
}

void flip_bit(const std::filesystem::path& path, std::size_t byte, int bit) {
  std::string bytes = read_file(path);
  bytes[byte] = static_cast<char>(bytes[byte] ^ (1 << bit));
  write_file(path, bytes);
}

TEST(TokenFolder, ADamagedTokenIsNamedWhenItIsReadAndNoOtherPartIsReadForIt) {
  const Scratch scratch;
  write_two_shards(scratch);
  const std::size_t damaged = 1024 + 2 * 150'000;  // in the fifth block of the first shard
  flip_bit(scratch / "train_000000.bin", damaged, 3);
  const ShardSequences sequences(TokenFolder(scratch.path(), "train"), 1000, 257);
  EXPECT_EQ(sequences.note(), "");
  std::vector<std::int64_t> window(1001);
  for (const std::uint64_t whole : {0, 100, 199, 240}) sequences.read(whole, window);
  const std::string error = error_of([&] { sequences.read(150, window); });
  for (const char* word : {"train_000000.bin", "bytes 262144 to 327680", "expected", "restore"}) {
    EXPECT_MENTIONS(error, word);
  }
  EXPECT_EQ(error_of([&] { sequences.read(150, window); }), error);  // again, not only once
}

TEST(TokenFolder, ADamagedHeaderDescriptionOrListOfChecksumsIsFoundAtOpening) {
  const Scratch scratch;
  write_two_shards(scratch);
  const auto opening = [&] {
    return error_of([&] { const TokenFolder folder(scratch.path(), "train"); });
  };
  ASSERT_EQ(opening(), "");
  for (const char* name : {"train_000001.bin", "tokens.json", "checksums.safetensors"}) {
    const std::string good = read_file(scratch / name);
    for (std::size_t byte = 0; byte < std::min<std::size_t>(good.size(), 1024); byte += 5) {
      flip_bit(scratch / name, byte, static_cast<int>(byte % 8));
      EXPECT_MENTIONS(opening(), name) << "byte " << byte;
      write_file(scratch / name, good);
    }
  }
  std::filesystem::remove(scratch / "checksums.safetensors");
  EXPECT_MENTIONS(opening(), "'checksums.safetensors' is missing");
}

TEST(TokenFolder, ShardsWithoutChecksumsAreReadWithANote) {
  const Scratch scratch;
  write_two_shards(scratch);
  std::filesystem::remove(scratch / "tokens.json");
  EXPECT_MENTIONS(TokenFolder(scratch.path(), "train").note(), "have no checksums");
}

TEST(TokenFolder, ASplitThatIsMadeAgainKeepsTheChecksumsOfTheOthers) {
  const Scratch scratch;
  for (const char* split : {"train", "valid", "train"}) {
    TokenFolderWriter writer(scratch.path(), bytes_info(), {split, 10, true});
    writer.append(counting(split[0] == 't' ? 12 : 3));
    writer.finish();
  }
  for (const char* split : {"train", "valid"}) {
    const TokenFolder folder(scratch.path(), split);
    EXPECT_EQ(folder.note(), "");
    for (const TokenShard& shard : folder.shards()) shard.check(0, shard.tokens().size());
  }
}

std::vector<std::string> documents(DocumentRule rule, std::string_view text, std::size_t piece) {
  std::vector<std::string> found;
  DocumentSplitter splitter(rule, [&](std::string_view part, bool begins) {
    if (begins) found.emplace_back();
    found.back() += part;
  });
  for (std::size_t at = 0; at < text.size(); at += piece) splitter.push(text.substr(at, piece));
  splitter.finish();
  return found;
}

TEST(Documents, AreTheSameHoweverTheTextArrives) {
  const std::string text = " \n = One = \n \n = = Part = = \nwords\n\n= Two =\n== Part ==\nend";
  for (const std::size_t piece : {1U, 3U, 1000U}) {
    EXPECT_EQ(documents(DocumentRule::heading, text, piece),
              (std::vector<std::string>{" \n = One = \n \n = = Part = = \nwords\n\n",
                                        "= Two =\n== Part ==\nend"}));
    EXPECT_EQ(documents(DocumentRule::blank, "\na\nb\n\n\nc\n\n", piece),
              (std::vector<std::string>{"\na\nb\n\n\n", "c\n\n"}));
    EXPECT_EQ(documents(DocumentRule::file, text, piece), (std::vector<std::string>{text}));
  }
  EXPECT_TRUE(documents(DocumentRule::file, "", 1).empty());
}

TEST(Documents, KeepNoLineThatIsTooLongToBeAMarker) {
  const std::string text = "a\n\n" + std::string(3 * kLongestMarker, 'x') + "\nb\n";
  std::size_t longest = 0;
  std::string whole;
  std::size_t number = 0;
  DocumentSplitter splitter(DocumentRule::blank, [&](std::string_view part, bool begins) {
    longest = std::max(longest, part.size());
    whole += part;
    number += begins ? 1 : 0;
  });
  constexpr std::size_t kPiece = 1000;
  for (std::size_t at = 0; at < text.size(); at += kPiece) {
    splitter.push(std::string_view(text).substr(at, kPiece));
  }
  splitter.finish();
  EXPECT_EQ(whole, text);
  EXPECT_EQ(number, 2U);
  EXPECT_LE(longest, kLongestMarker + kPiece);
}

}  // namespace
}  // namespace rode::lab
