// SPDX-License-Identifier: Apache-2.0
// One file of tokens in one of llm.c's layouts: 256 int32 (magic, version, count, zeros), then
// `count` tokens, all little-endian. Magic 20240520 and version 1: uint16; magic 20240801 and
// version 7: uint32, for vocabularies of more than 65,536 entries.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/file_io.h"
#include "lab/text/shard_checksums.h"
#include "lab/text/tokenizer.h"

namespace rode::lab {

struct ShardLayout {
  std::int32_t magic = 0;
  std::int32_t version = 0;
  std::size_t width = 0;  // bytes of a token
};
inline constexpr ShardLayout kNarrowShard{20240520, 1, sizeof(std::uint16_t)};
inline constexpr ShardLayout kWideShard{20240801, 7, sizeof(std::uint32_t)};
inline constexpr std::size_t kShardHeaderBytes = 256 * sizeof(std::int32_t);
inline constexpr std::size_t kMaxShardTokens = 0x7FFFFFFF;  // the header's count is an int32
inline constexpr std::int64_t kNarrowVocabSize = 65536;     // what a uint16 can distinguish
inline constexpr std::int64_t kMaxVocabSize = std::int64_t{1} << 31U;

// The one that a vocabulary needs.
constexpr const ShardLayout& layout_for(std::int64_t vocab_size) {
  return vocab_size <= kNarrowVocabSize ? kNarrowShard : kWideShard;
}

// Tokens as they lie in a file, of either width.
class ShardTokens {
 public:
  ShardTokens() = default;
  ShardTokens(std::span<const std::byte> bytes, std::size_t width) : bytes_(bytes), width_(width) {}

  std::size_t size() const { return bytes_.size() / width_; }
  std::size_t size_bytes() const { return bytes_.size(); }
  std::size_t width() const { return width_; }
  Token operator[](std::size_t index) const {
    Token token = 0;  // little-endian: the missing half is the upper one
    std::memcpy(&token, bytes_.data() + index * width_, width_);
    return token;
  }
  std::vector<Token> copy() const {
    std::vector<Token> tokens(size());
    for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = (*this)[i];
    return tokens;
  }

 private:
  std::span<const std::byte> bytes_;
  std::size_t width_ = sizeof(std::uint16_t);
};

// The tokens that a shard's bytes hold; `source` names the file in errors. A file that does not
// have exactly one of the layouts above is refused.
ShardTokens parse_shard(std::span<const std::byte> bytes, std::string_view source);

// Memory-mapped: pages are read when tokens are.
class TokenShard {
 public:
  explicit TokenShard(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  const ShardTokens& tokens() const { return tokens_; }

  // What check() compares with, from here on. Refuses a number that is not that of the blocks.
  void protect(BlockHashes hashes);
  // Throws where a block that holds a part of these tokens, or the header, is not what was
  // written. Each block is read once in the life of this object; thread-safe.
  void check(std::size_t first, std::size_t count) const;

 private:
  std::filesystem::path path_;
  FileMapping mapping_;
  ShardTokens tokens_;
  BlockHashes hashes_;                             // empty: nothing is known of the file
  std::unique_ptr<std::atomic<bool>[]> verified_;  // by block
};

// One new file, written as tokens come: memory does not grow with them. Until close() has put it on
// the disk it has no header, and is not a shard.
class ShardWriter {
 public:
  explicit ShardWriter(const std::filesystem::path& path, const ShardLayout& layout = kNarrowShard);

  std::size_t size() const { return size_; }
  // Throws for a token that the layout cannot hold.
  void append(std::span<const Token> tokens);
  BlockHashes close();

 private:
  void write(std::span<const std::byte> bytes, std::size_t at);

  std::filesystem::path path_;
  FileDescriptor file_;
  ShardLayout layout_;
  std::size_t size_ = 0;
  std::vector<std::byte> first_;  // of the first block: its hash waits for the header
  BlockHasher rest_;
};

// All at once; appears under its name only when complete and on the disk.
BlockHashes write_shard(const std::filesystem::path& path, std::span<const Token> tokens,
                        const ShardLayout& layout = kNarrowShard);

}  // namespace rode::lab
