// SPDX-License-Identifier: Apache-2.0
// A seeded permutation of 0..n-1 that is computed, not stored.
#pragma once

#include <array>
#include <cstdint>

namespace rode::lab {

// A Feistel network over the next even number of bits, walked until the value lies below n
// (Black, Rogaway 2002): constant memory for any n, fewer than four rounds of walking expected.
class Permutation {
 public:
  Permutation(std::uint64_t size, std::uint64_t seed);

  std::uint64_t size() const { return size_; }
  std::uint64_t operator()(std::uint64_t index) const;  // index < size()

 private:
  static constexpr int kRounds = 8;

  std::uint64_t encrypt(std::uint64_t value) const;

  std::uint64_t size_;
  unsigned half_bits_;
  std::array<std::uint64_t, kRounds> keys_{};
};

}  // namespace rode::lab
