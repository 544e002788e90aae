// SPDX-License-Identifier: Apache-2.0
// Token shards: checks of the header against the file, and writing.
#include "lab/text/token_shard.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <tuple>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "core/checksum.h"

namespace rode::lab {
namespace {

static_assert(std::endian::native == std::endian::little, "shards are mapped as they are");

constexpr std::string_view kTokenShard = "token shard";
constexpr std::string_view kShardRemedy = "make it again with 'rode data tokens'";

using Header = std::array<std::int32_t, 256>;

}  // namespace

std::span<const std::uint16_t> parse_shard(std::span<const std::byte> bytes,
                                           std::string_view source) {
  const auto fail = [&](std::string_view what) {
    return file_error(kTokenShard, source, fmt::format("{}; {}", what, kShardRemedy));
  };
  if (bytes.size() < kShardHeaderBytes) {
    throw fail(
        fmt::format("holds {} bytes; expected a header of {}", bytes.size(), kShardHeaderBytes));
  }
  Header header;
  std::memcpy(header.data(), bytes.data(), kShardHeaderBytes);
  if (header[0] != kShardMagic) {
    throw fail(fmt::format("begins with {}; expected the magic number {} of a token shard",
                           header[0], kShardMagic));
  }
  if (header[1] != kShardVersion) {
    throw fail(fmt::format("has version {}; expected version {} (uint16 tokens)", header[1],
                           kShardVersion));
  }
  if (header[2] < 0) {
    throw fail(fmt::format("claims {} tokens; expected a count of 0 or more", header[2]));
  }
  const auto count = static_cast<std::size_t>(header[2]);
  const std::size_t body = bytes.size() - kShardHeaderBytes;
  if (body != count * sizeof(std::uint16_t)) {
    throw fail(
        fmt::format("claims {} tokens ({} bytes) but {} bytes follow the header; the file "
                    "was cut short or appended to",
                    count, count * sizeof(std::uint16_t), body));
  }
  // A mapping begins at a page, other memory at an allocation, and the header is even: aligned.
  return {reinterpret_cast<const std::uint16_t*>(bytes.data() + kShardHeaderBytes), count};
}

TokenShard::TokenShard(const std::filesystem::path& path)
    : path_(path),
      mapping_(path, kTokenShard),
      tokens_(parse_shard(mapping_.bytes(), path_.string())) {}

void TokenShard::protect(BlockHashes hashes) {
  const std::size_t blocks = (mapping_.bytes().size() + kShardBlockBytes - 1) / kShardBlockBytes;
  if (hashes.size() != blocks) {
    throw file_error(
        kTokenShard, path_.string(),
        fmt::format("has {} blocks of {} bytes; expected {}, of which '{}' has the "
                    "checksums; {}",
                    blocks, kShardBlockBytes, hashes.size(), kShardChecksums, kShardRemedy));
  }
  hashes_ = std::move(hashes);
  verified_ = std::make_unique<std::atomic<bool>[]>(blocks);
  check(0, 0);
}

void TokenShard::check(std::size_t first, std::size_t count) const {
  if (hashes_.empty()) return;
  const auto bytes = mapping_.bytes();
  const auto block_of = [](std::size_t token) {
    return (kShardHeaderBytes + token * sizeof(std::uint16_t)) / kShardBlockBytes;
  };
  const std::size_t last = count == 0 ? block_of(first) : block_of(first + count - 1);
  for (std::size_t block = block_of(first); block <= last; ++block) {
    if (verified_[block].load(std::memory_order_relaxed)) continue;
    const std::size_t begin = block * kShardBlockBytes;
    const auto part = bytes.subspan(begin, std::min(kShardBlockBytes, bytes.size() - begin));
    const std::uint64_t found = hash64(part);
    if (found != hashes_[block]) {
      throw file_error(kTokenShard, path_.string(),
                       fmt::format("bytes {} to {} give checksum {:016x}; expected {:016x} as "
                                   "recorded in '{}'; the shard was damaged or replaced: restore "
                                   "it from a copy, or {}",
                                   begin, begin + part.size(), found, hashes_[block],
                                   kShardChecksums, kShardRemedy));
    }
    verified_[block].store(true, std::memory_order_relaxed);
  }
}

namespace {

Header header_of(std::size_t count) {
  if (count > kMaxShardTokens) {
    throw Error(ErrorKind::invalid_argument, kTokenShard,
                fmt::format("{} tokens for one shard; expected at most {}; use smaller shards",
                            count, kMaxShardTokens));
  }
  Header header{};
  header[0] = kShardMagic;
  header[1] = kShardVersion;
  header[2] = static_cast<std::int32_t>(count);
  return header;
}

Error write_error(const std::filesystem::path& path, int number) {
  return file_error(kTokenShard, path.string(),
                    fmt::format("cannot be written ({}); free space or choose another folder",
                                std::error_code(number, std::generic_category()).message()));
}

}  // namespace

ShardWriter::ShardWriter(const std::filesystem::path& path)
    : path_(path), file_(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)) {
  if (file_.get() < 0) throw write_error(path_, errno);
}

void ShardWriter::write(std::span<const std::byte> bytes, std::size_t at) {
  while (!bytes.empty()) {
    const ::ssize_t written =
        ::pwrite(file_.get(), bytes.data(), bytes.size(), static_cast<::off_t>(at));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw write_error(path_, errno);
    at += static_cast<std::size_t>(written);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

void ShardWriter::append(std::span<const std::uint16_t> tokens) {
  std::ignore = header_of(size_ + tokens.size());
  const std::span<const std::byte> bytes = std::as_bytes(tokens);
  write(bytes, kShardHeaderBytes + size_ * sizeof(std::uint16_t));
  size_ += tokens.size();
  const std::size_t room = kShardBlockBytes - kShardHeaderBytes - first_.size();
  const std::size_t early = std::min(room, bytes.size());
  first_.insert(first_.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(early));
  rest_.add(bytes.subspan(early));
}

BlockHashes ShardWriter::close() {
  const Header header = header_of(size_);
  write(std::as_bytes(std::span(header)), 0);
  if (!file_.sync() || !file_.close()) throw write_error(path_, errno);
  BlockHasher beginning;
  beginning.add(std::as_bytes(std::span(header)));
  beginning.add(first_);
  BlockHashes hashes = beginning.finish();
  const BlockHashes rest = rest_.finish();
  hashes.insert(hashes.end(), rest.begin(), rest.end());
  return hashes;
}

BlockHashes write_shard(const std::filesystem::path& path, std::span<const std::uint16_t> tokens) {
  const Header header = header_of(tokens.size());
  AtomicFile file(path, kTokenShard);
  BlockHasher hasher;
  const auto write = [&](std::span<const std::byte> bytes) {
    hasher.add(bytes);
    file.write(bytes);
  };
  write(std::as_bytes(std::span(header)));
  write(std::as_bytes(tokens));
  file.commit();
  return hasher.finish();
}

}  // namespace rode::lab
