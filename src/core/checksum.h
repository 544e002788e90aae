// SPDX-License-Identifier: Apache-2.0
// The checksum inside our files: XXH3 with 128 bits, as 32 digits after a tag.
//
// In every file the sum covers all bytes, with the 32 digits taken as zeros ('0'), so that it may
// be anywhere in the file. docs/files.md describes the format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace rode {

// Long enough not to occur by chance. Wherever it is found, the file has a checksum: a file whose
// key was damaged is not mistaken for one that never had a checksum.
inline constexpr std::string_view kChecksumTag = "rode-xxh3-128:";
inline constexpr std::size_t kChecksumDigits = 32;

// XXH3-128 (seed 0) of bytes that arrive in pieces.
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

// Where the digits begin: after the first tag in `text`. Empty if there is none.
std::optional<std::size_t> find_checksum(std::string_view text);

// The digits that belong at `at`: the hash of `bytes` with those digits as zeros. If the bytes end
// within the digits, only those present count.
std::string checksum_of(std::span<const std::byte> bytes, std::size_t at);

// 64 bits of the same hash, for bytes that do not contain it.
std::uint64_t hash64(std::span<const std::byte> bytes);

}  // namespace rode
