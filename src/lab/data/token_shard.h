// SPDX-License-Identifier: Apache-2.0
// One file of tokens in llm.c's layout: 256 int32 (magic 20240520, version 1, count, zeros),
// then `count` uint16, all little-endian.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "core/file_io.h"

namespace rode::lab {

inline constexpr std::int32_t kShardMagic = 20240520;
inline constexpr std::int32_t kShardVersion = 1;
inline constexpr std::size_t kShardHeaderBytes = 256 * sizeof(std::int32_t);
inline constexpr std::int64_t kMaxVocabSize = 65536;  // what a uint16 can tell apart

// Memory-mapped: pages are read when tokens are. A file that does not have exactly the layout
// above is refused.
class TokenShard {
 public:
  explicit TokenShard(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  std::span<const std::uint16_t> tokens() const { return tokens_; }

 private:
  std::filesystem::path path_;
  FileMapping mapping_;
  std::span<const std::uint16_t> tokens_;
};

// Appears under its name only when complete and on the disk.
void write_shard(const std::filesystem::path& path, std::span<const std::uint16_t> tokens);

}  // namespace rode::lab
