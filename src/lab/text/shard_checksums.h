// SPDX-License-Identifier: Apache-2.0
// Hashes of token shards by blocks, so that what is read can be checked without reading the rest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace rode::lab {

// Small compared with what a disk reads at a time, large compared with the 8 bytes of a hash.
inline constexpr std::size_t kShardBlockBytes = std::size_t{64} << 10U;
inline constexpr std::string_view kShardChecksums = "checksums.safetensors";

// Of every block of 64 KiB of a file, header included; the last may be shorter.
using BlockHashes = std::vector<std::uint64_t>;

// Bytes of a file in the order of the file, in pieces of any size.
class BlockHasher {
 public:
  void add(std::span<const std::byte> bytes);
  BlockHashes finish();

 private:
  std::vector<std::byte> pending_;  // less than a block
  BlockHashes hashes_;
};

// <folder>/checksums.safetensors: by the name of a shard. Nothing if there is no such file; one
// that is damaged is refused.
std::optional<std::map<std::string, BlockHashes>> read_shard_checksums(
    const std::filesystem::path& folder);
void write_shard_checksums(const std::filesystem::path& folder,
                           const std::map<std::string, BlockHashes>& shards);

}  // namespace rode::lab
