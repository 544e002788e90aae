// SPDX-License-Identifier: Apache-2.0
// A folder of token shards: its splits, and tokens.json, which says what made the tokens.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lab/text/token_shard.h"

namespace rode::lab {

struct SplitInfo {
  std::int64_t shards = 0;
  std::int64_t tokens = 0;
  bool checksums = false;  // of its shards, in checksums.safetensors
};

inline constexpr const char* kTokenInfo = "tokens.json";
inline constexpr std::string_view kTokenFolder = "token folder";  // the operation that errors name

// What <folder>/tokens.json holds.
struct TokenInfo {
  std::string tokenizer;                    // "gpt2", "bytes"
  std::int64_t vocab_size = 0;              // every token lies below it
  std::int64_t end_of_text = 0;             // the token before each document
  std::map<std::string, SplitInfo> splits;  // complete splits only
};

std::string token_info_text(const TokenInfo& info);
TokenInfo parse_token_info(std::string_view text, std::string_view source);
std::optional<TokenInfo> read_token_info(const std::filesystem::path& folder);
void write_token_info(const std::filesystem::path& folder, const TokenInfo& info);

// "train", "valid" or "test" by the words of a shard's name (fineweb_val_000000.bin: valid);
// empty if there is none.
std::string split_of(const std::filesystem::path& file);

// The *.bin files of a split, in the order of their names.
std::vector<std::filesystem::path> shard_paths(const std::filesystem::path& folder,
                                               const std::string& split);

// The shards of a split, opened and checked: against each other, and against tokens.json
// where there is one. Their bytes are compared with the recorded checksums when they are read
// (TokenShard::check), which costs no pass over the data before its use.
class TokenFolder {
 public:
  TokenFolder(const std::filesystem::path& folder, const std::string& split);

  const std::vector<TokenShard>& shards() const { return shards_; }
  const std::optional<TokenInfo>& info() const { return info_; }
  std::uint64_t tokens() const { return tokens_; }
  // A note for shards without checksums; else empty.
  const std::string& note() const { return note_; }

  // Throws where tokens.json names a vocabulary that a model of this size cannot embed.
  void require_vocab(std::int64_t model_vocab_size) const;

 private:
  void protect_shards();

  std::filesystem::path folder_;
  std::vector<TokenShard> shards_;
  std::optional<TokenInfo> info_;
  std::uint64_t tokens_ = 0;
  std::string note_;
};

// Cuts a run of tokens into shards named <split>_000000.bin, ..., in a separate folder next to
// their place, without keeping them in memory. finish() moves them there and records the split in
// tokens.json. Destroyed before that, it leaves the folder as it was; killed inside finish(), the
// split is not recorded, and readers refuse it.
class TokenFolderWriter {
 public:
  struct Options {
    std::string split = "train";
    std::size_t shard_tokens = 100'000'000;
    bool overwrite = false;  // replace the split's shards
  };

  TokenFolderWriter(const std::filesystem::path& folder, const TokenInfo& info,
                    const Options& options);
  TokenFolderWriter(const TokenFolderWriter&) = delete;
  TokenFolderWriter& operator=(const TokenFolderWriter&) = delete;
  ~TokenFolderWriter();

  void append(std::span<const Token> tokens);
  SplitInfo finish();  // throws where no token was appended

 private:
  void close_shard();
  void place(const std::vector<std::filesystem::path>& old);  // moves and records the split
  void take_back();
  void clean_up();
  std::string shard_name(std::int64_t number) const;

  std::filesystem::path folder_;
  std::filesystem::path made_;   // the first folder that had to be made; empty where none
  std::filesystem::path stage_;  // where shards wait for finish()
  TokenInfo info_;
  Options options_;
  std::optional<ShardWriter> shard_;
  SplitInfo written_;
  std::map<std::string, BlockHashes> checksums_;  // of the shards written
  std::map<std::string, BlockHashes> others_;     // of those that were there
  bool described_ = false;                        // tokens.json was there
};

}  // namespace rode::lab
