// SPDX-License-Identifier: Apache-2.0
// A seeded permutation by a Feistel network and cycle walking.
#include "lab/data/permutation.h"

#include <algorithm>
#include <bit>

#include "lab/data/random.h"

namespace rode::lab {

Permutation::Permutation(std::uint64_t size, std::uint64_t seed) : size_(size) {
  const auto bits = static_cast<int>(std::bit_width(size > 0 ? size - 1 : 0));
  half_bits_ = static_cast<unsigned>(std::max(1, (bits + 1) / 2));
  Random random(seed);
  for (std::uint64_t& key : keys_) key = random.next();
}

std::uint64_t Permutation::encrypt(std::uint64_t value) const {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  std::uint64_t left = value >> half_bits_;
  std::uint64_t right = value & mask;
  for (const std::uint64_t key : keys_) {
    const std::uint64_t mixed = left ^ (mix64(right ^ key) & mask);
    left = right;
    right = mixed;
  }
  return (left << half_bits_) | right;
}

std::uint64_t Permutation::operator()(std::uint64_t index) const {
  // The network permutes a power of four; its cycle through `index` returns below size_.
  std::uint64_t value = encrypt(index);
  while (value >= size_) value = encrypt(value);
  return value;
}

}  // namespace rode::lab
