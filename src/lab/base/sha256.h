// SPDX-License-Identifier: Apache-2.0
// SHA-256 (FIPS 180-4), to check downloads.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace rode::lab {

class Sha256 {
 public:
  void update(std::span<const std::byte> bytes);
  std::string hex();  // of all bytes so far; the object is used up

 private:
  void block(const std::byte* bytes);

  std::array<std::uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, 64> pending_{};
  std::uint64_t size_ = 0;
};

std::string sha256_of_file(const std::filesystem::path& path);

}  // namespace rode::lab
