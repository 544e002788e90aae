// SPDX-License-Identifier: Apache-2.0
// XXH3, header-only: neither the library nor its users need to link xxHash.
#include "core/checksum.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace rode {

struct Checksum::State {
  XXH3_state_t xxh3;
};

Checksum::Checksum() : state_(std::make_unique<State>()) { XXH3_128bits_reset(&state_->xxh3); }
Checksum::~Checksum() = default;

void Checksum::add(std::span<const std::byte> bytes) {
  if (!bytes.empty()) XXH3_128bits_update(&state_->xxh3, bytes.data(), bytes.size());
}

std::string Checksum::digits() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(&state_->xxh3);
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

std::string checksum_placeholder() {
  return std::string(kChecksumTag) + std::string(kChecksumDigits, '0');
}

std::optional<std::size_t> find_checksum(std::string_view text) {
  const std::size_t tag = text.find(kChecksumTag);
  if (tag == std::string_view::npos) return std::nullopt;
  return tag + kChecksumTag.size();
}

std::string checksum_of(std::span<const std::byte> bytes, std::size_t at) {
  static constexpr auto kZeros = [] {
    std::array<char, kChecksumDigits> zeros{};
    zeros.fill('0');
    return zeros;
  }();
  const std::size_t begin = std::min(at, bytes.size());
  const std::size_t count = std::min(kChecksumDigits, bytes.size() - begin);
  Checksum sum;
  sum.add(bytes.first(begin));
  sum.add(std::as_bytes(std::span(kZeros)).first(count));
  sum.add(bytes.subspan(begin + count));
  return sum.digits();
}

std::uint64_t hash64(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

}  // namespace rode
