// SPDX-License-Identifier: Apache-2.0
// Token shards: checks of the header against the file, and writing.
#include "lab/data/token_shard.h"

#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <tuple>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

namespace rode::lab {
namespace {

static_assert(std::endian::native == std::endian::little, "shards are mapped as they are");

constexpr std::string_view kOperation = "token shard";
constexpr std::string_view kRemedy = "make it again with 'rode data tokens'";

using Header = std::array<std::int32_t, 256>;

}  // namespace

std::span<const std::uint16_t> parse_shard(std::span<const std::byte> bytes,
                                           std::string_view source) {
  const auto fail = [&](std::string_view what) {
    return file_error(kOperation, source, fmt::format("{}; {}", what, kRemedy));
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
      mapping_(path, kOperation),
      tokens_(parse_shard(mapping_.bytes(), path_.string())) {}

namespace {

Header header_of(std::size_t count) {
  if (count > kMaxShardTokens) {
    throw Error(ErrorKind::invalid_argument, kOperation,
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
  return file_error(kOperation, path.string(),
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
  write(std::as_bytes(tokens), kShardHeaderBytes + size_ * sizeof(std::uint16_t));
  size_ += tokens.size();
}

void ShardWriter::close() {
  const Header header = header_of(size_);
  write(std::as_bytes(std::span(header)), 0);
  if (::fsync(file_.get()) != 0 || !file_.close()) throw write_error(path_, errno);
}

void write_shard(const std::filesystem::path& path, std::span<const std::uint16_t> tokens) {
  const Header header = header_of(tokens.size());
  AtomicFile file(path, kOperation);
  file.write(std::as_bytes(std::span(header)));
  file.write(std::as_bytes(tokens));
  file.commit();
}

}  // namespace rode::lab
