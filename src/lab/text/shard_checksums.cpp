// SPDX-License-Identifier: Apache-2.0
// Block hashes of shards: making them, and the file next to the shards that holds them.
#include "lab/text/shard_checksums.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "core/checksum.h"
#include "core/file_io.h"
#include "rode/safetensors.h"

namespace rode::lab {
namespace {

constexpr const char* kBlockKey = "rode.block_bytes";

}  // namespace

void BlockHasher::add(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    if (pending_.empty() && bytes.size() >= kShardBlockBytes) {
      hashes_.push_back(hash64(bytes.first(kShardBlockBytes)));
      bytes = bytes.subspan(kShardBlockBytes);
      continue;
    }
    const auto part = bytes.first(std::min(bytes.size(), kShardBlockBytes - pending_.size()));
    pending_.insert(pending_.end(), part.begin(), part.end());
    bytes = bytes.subspan(part.size());
    if (pending_.size() == kShardBlockBytes) {
      hashes_.push_back(hash64(pending_));
      pending_.clear();
    }
  }
}

BlockHashes BlockHasher::finish() {
  if (!pending_.empty()) hashes_.push_back(hash64(pending_));
  pending_.clear();
  return std::exchange(hashes_, {});
}

std::optional<std::map<std::string, BlockHashes>> read_shard_checksums(
    const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / kShardChecksums;
  if (!std::filesystem::exists(path)) return std::nullopt;
  const SafetensorsFile file = SafetensorsFile::open(path);
  const auto refuse = [&](std::string_view what) {
    return file_error("token folder", path.string(),
                      fmt::format("{}; make the folder again with 'rode data tokens'", what));
  };
  const auto block = file.metadata().find(kBlockKey);
  if (block == file.metadata().end() || block->second != fmt::to_string(kShardBlockBytes)) {
    throw refuse(fmt::format("has metadata {} '{}'; expected '{}'", kBlockKey,
                             block == file.metadata().end() ? "" : printable(block->second),
                             kShardBlockBytes));
  }
  std::map<std::string, BlockHashes> shards;
  for (const std::string& name : file.names()) {
    const ConstTensorView view = file.tensor(name);
    if (view.dtype != DType::u64) {
      throw refuse(fmt::format("'{}' is {}; expected U64", printable(name), to_string(view.dtype)));
    }
    const auto* first = static_cast<const std::uint64_t*>(view.data);
    shards[name] = BlockHashes(first, first + view.numel());
  }
  return shards;
}

void write_shard_checksums(const std::filesystem::path& folder,
                           const std::map<std::string, BlockHashes>& shards) {
  std::vector<TensorEntry> entries;
  for (const auto& [name, hashes] : shards) {
    const Shape shape{static_cast<std::int64_t>(hashes.size())};
    entries.push_back({name, {hashes.data(), shape, DType::u64}});
  }
  write_safetensors(folder / kShardChecksums, entries,
                    {{kBlockKey, fmt::to_string(kShardBlockBytes)}});
}

}  // namespace rode::lab
