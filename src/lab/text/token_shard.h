// SPDX-License-Identifier: Apache-2.0
// One file of tokens in llm.c's layout: 256 int32 (magic 20240520, version 1, count, zeros),
// then `count` uint16, all little-endian.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/file_io.h"
#include "lab/text/shard_checksums.h"

namespace rode::lab {

inline constexpr std::int32_t kShardMagic = 20240520;
inline constexpr std::int32_t kShardVersion = 1;
inline constexpr std::size_t kShardHeaderBytes = 256 * sizeof(std::int32_t);
inline constexpr std::size_t kMaxShardTokens = 0x7FFFFFFF;  // the header's count is an int32
inline constexpr std::int64_t kMaxVocabSize = 65536;        // what a uint16 can tell apart

// The tokens that a shard's bytes hold; `source` names the file in errors. A file that does not
// have exactly the layout above is refused.
std::span<const std::uint16_t> parse_shard(std::span<const std::byte> bytes,
                                           std::string_view source);

// Memory-mapped: pages are read when tokens are.
class TokenShard {
 public:
  explicit TokenShard(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  std::span<const std::uint16_t> tokens() const { return tokens_; }

  // What check() compares with, from here on. Refuses a number that is not that of the blocks.
  void protect(BlockHashes hashes);
  // Throws where a block that holds a part of these tokens, or the header, is not what was
  // written. Each block is read once in the life of this object; thread-safe.
  void check(std::size_t first, std::size_t count) const;

 private:
  std::filesystem::path path_;
  FileMapping mapping_;
  std::span<const std::uint16_t> tokens_;
  BlockHashes hashes_;                             // empty: nothing is known of the file
  std::unique_ptr<std::atomic<bool>[]> verified_;  // by block
};

// One new file, written as tokens come: memory does not grow with them. Until close() has put it on
// the disk it has no header, and is not a shard.
class ShardWriter {
 public:
  explicit ShardWriter(const std::filesystem::path& path);

  std::size_t size() const { return size_; }
  void append(std::span<const std::uint16_t> tokens);
  BlockHashes close();

 private:
  void write(std::span<const std::byte> bytes, std::size_t at);

  std::filesystem::path path_;
  FileDescriptor file_;
  std::size_t size_ = 0;
  std::vector<std::byte> first_;  // of the first block: its hash waits for the header
  BlockHasher rest_;
};

// All at once; appears under its name only when complete and on the disk.
BlockHashes write_shard(const std::filesystem::path& path, std::span<const std::uint16_t> tokens);

}  // namespace rode::lab
