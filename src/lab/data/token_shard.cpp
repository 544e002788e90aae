// SPDX-License-Identifier: Apache-2.0
// Token shards: checks of the header against the file, and writing.
#include "lab/data/token_shard.h"

#include <array>
#include <bit>
#include <cstring>
#include <limits>

#include <fmt/format.h>

namespace rode::lab {
namespace {

static_assert(std::endian::native == std::endian::little, "shards are mapped as they are");

constexpr std::string_view kOperation = "token shard";
constexpr std::string_view kRemedy = "make it again with 'rode data tokens'";

using Header = std::array<std::int32_t, 256>;

}  // namespace

TokenShard::TokenShard(const std::filesystem::path& path)
    : path_(path), mapping_(path, kOperation) {
  const std::span<const std::byte> bytes = mapping_.bytes();
  const auto fail = [&](std::string_view what) {
    return file_error(kOperation, path.string(), fmt::format("{}; {}", what, kRemedy));
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
  // The mapping begins at a page and the header is even: aligned for uint16.
  tokens_ = {reinterpret_cast<const std::uint16_t*>(bytes.data() + kShardHeaderBytes), count};
}

void write_shard(const std::filesystem::path& path, std::span<const std::uint16_t> tokens) {
  if (tokens.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
    throw Error(ErrorKind::invalid_argument, kOperation,
                fmt::format("{} tokens for one shard; expected at most {}; use smaller shards",
                            tokens.size(), std::numeric_limits<std::int32_t>::max()));
  }
  Header header{};
  header[0] = kShardMagic;
  header[1] = kShardVersion;
  header[2] = static_cast<std::int32_t>(tokens.size());
  AtomicFile file(path, kOperation);
  file.write(std::as_bytes(std::span(header)));
  file.write(std::as_bytes(tokens));
  file.commit();
}

}  // namespace rode::lab
