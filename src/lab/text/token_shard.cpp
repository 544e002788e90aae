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

// As the file has them.
std::vector<std::byte> packed(std::span<const Token> tokens, const ShardLayout& layout,
                              std::string_view path) {
  std::vector<std::byte> bytes(tokens.size() * layout.width);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (layout.width == sizeof(std::uint16_t) && tokens[i] >= kNarrowVocabSize) {
      throw file_error(kTokenShard, path,
                       fmt::format("token {} for a shard of 16-bit tokens; expected one below {}",
                                   tokens[i], kNarrowVocabSize));
    }
    std::memcpy(bytes.data() + i * layout.width, &tokens[i], layout.width);
  }
  return bytes;
}

}  // namespace

ShardTokens parse_shard(std::span<const std::byte> bytes, std::string_view source) {
  const auto fail = [&](std::string_view what) {
    return file_error(kTokenShard, source, fmt::format("{}; {}", what, kShardRemedy));
  };
  if (bytes.size() < kShardHeaderBytes) {
    throw fail(
        fmt::format("holds {} bytes; expected a header of {}", bytes.size(), kShardHeaderBytes));
  }
  Header header;
  std::memcpy(header.data(), bytes.data(), kShardHeaderBytes);
  const bool wide = header[0] == kWideShard.magic;
  const ShardLayout& layout = wide ? kWideShard : kNarrowShard;
  if (header[0] != layout.magic) {
    throw fail(fmt::format("begins with {}; expected the magic number {} or {} of a token shard",
                           header[0], kNarrowShard.magic, kWideShard.magic));
  }
  if (header[1] != layout.version) {
    throw fail(fmt::format("has version {}; expected version {} ({} tokens)", header[1],
                           layout.version, wide ? "uint32" : "uint16"));
  }
  if (header[2] < 0) {
    throw fail(fmt::format("claims {} tokens; expected a count of 0 or more", header[2]));
  }
  const auto count = static_cast<std::size_t>(header[2]);
  const std::size_t body = bytes.size() - kShardHeaderBytes;
  if (body != count * layout.width) {
    throw fail(
        fmt::format("claims {} tokens ({} bytes) but {} bytes follow the header; the file "
                    "was cut short or appended to",
                    count, count * layout.width, body));
  }
  return {bytes.subspan(kShardHeaderBytes), layout.width};
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
        fmt::format("has {} blocks of {} bytes; expected {}, the number of checksums in '{}'; {}",
                    blocks, kShardBlockBytes, hashes.size(), kShardChecksums, kShardRemedy));
  }
  hashes_ = std::move(hashes);
  verified_ = std::make_unique<std::atomic<bool>[]>(blocks);
  check(0, 0);
}

void TokenShard::check(std::size_t first, std::size_t count) const {
  if (hashes_.empty()) return;
  const auto bytes = mapping_.bytes();
  const auto block_of = [width = tokens_.width()](std::size_t token) {
    return (kShardHeaderBytes + token * width) / kShardBlockBytes;
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

Header header_of(std::size_t count, const ShardLayout& layout) {
  if (count > kMaxShardTokens) {
    throw Error(ErrorKind::invalid_argument, kTokenShard,
                fmt::format("{} tokens for one shard; expected at most {}; use smaller shards",
                            count, kMaxShardTokens));
  }
  Header header{};
  header[0] = layout.magic;
  header[1] = layout.version;
  header[2] = static_cast<std::int32_t>(count);
  return header;
}

Error write_error(const std::filesystem::path& path, int number) {
  return file_error(kTokenShard, path.string(),
                    fmt::format("cannot be written ({}); free space or choose another folder",
                                std::error_code(number, std::generic_category()).message()));
}

}  // namespace

ShardWriter::ShardWriter(const std::filesystem::path& path, const ShardLayout& layout)
    : path_(path),
      file_(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)),
      layout_(layout) {
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

void ShardWriter::append(std::span<const Token> tokens) {
  std::ignore = header_of(size_ + tokens.size(), layout_);
  const std::vector<std::byte> made = packed(tokens, layout_, path_.string());
  const std::span<const std::byte> bytes = made;
  write(bytes, kShardHeaderBytes + size_ * layout_.width);
  size_ += tokens.size();
  const std::size_t room = kShardBlockBytes - kShardHeaderBytes - first_.size();
  const std::size_t early = std::min(room, bytes.size());
  first_.insert(first_.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(early));
  rest_.add(bytes.subspan(early));
}

BlockHashes ShardWriter::close() {
  const Header header = header_of(size_, layout_);
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

BlockHashes write_shard(const std::filesystem::path& path, std::span<const Token> tokens,
                        const ShardLayout& layout) {
  const Header header = header_of(tokens.size(), layout);
  const std::vector<std::byte> body = packed(tokens, layout, path.string());
  AtomicFile file(path, kTokenShard);
  BlockHasher hasher;
  const auto write = [&](std::span<const std::byte> bytes) {
    hasher.add(bytes);
    file.write(bytes);
  };
  write(std::as_bytes(std::span(header)));
  write(body);
  file.commit();
  return hasher.finish();
}

}  // namespace rode::lab
