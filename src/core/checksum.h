// SPDX-License-Identifier: Apache-2.0
// The checksum that files carry in themselves: XXH3 with 128 bits, as 32 digits behind a tag.
//
// Whatever the file, the sum is over all of its bytes with the 32 digits taken as zeros ('0'), so
// that it may stand anywhere in them. The format is docs/files.md's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace rode {

// Long enough not to be met by chance. Found anywhere, it says that the file has a checksum: one
// whose key was damaged is not mistaken for a file that never had one.
inline constexpr std::string_view kChecksumTag = "rode-xxh3-128:";
inline constexpr std::size_t kChecksumDigits = 32;

// XXH3-128 (seed 0) of bytes that come piece by piece.
class Checksum {
 public:
  Checksum();
  Checksum(const Checksum&) = delete;
  Checksum& operator=(const Checksum&) = delete;
  ~Checksum();

  void add(std::span<const std::byte> bytes);
  // 32 lower-case hexadecimal digits, the most significant first, as xxh128sum prints them.
  std::string digits() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The tag and zeros, to be replaced by the digits once they are known.
std::string checksum_placeholder();

// Where the digits begin: behind the first tag of `text`. Nothing where it has none.
std::optional<std::size_t> find_checksum(std::string_view text);

// The digits that belong into `bytes` at `at`. Where the file ends before, what is there of it.
std::string checksum_of(std::span<const std::byte> bytes, std::size_t at);

// 64 bits of the same hash, of bytes that do not carry it.
std::uint64_t hash64(std::span<const std::byte> bytes);

}  // namespace rode
