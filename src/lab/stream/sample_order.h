// SPDX-License-Identifier: Apache-2.0
// Which sample comes next: a seeded order over epochs and ranks that resumes exactly.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include <nlohmann/json_fwd.hpp>

namespace rode::lab {

struct OrderOptions {
  std::uint64_t seed = 1;
  std::uint64_t rank = 0;   // of this process
  std::uint64_t world = 1;  // processes that share the samples
};

// The position of a stream. `taken` counts the samples of all ranks together, so that a run may be
// resumed with another number of ranks; seed and size show whether it is the same stream.
struct StreamPosition {
  std::uint64_t taken = 0;
  std::uint64_t seed = 0;
  std::uint64_t size = 0;

  bool operator==(const StreamPosition&) const = default;
};

nlohmann::json to_json(const StreamPosition& position);
StreamPosition stream_position(const nlohmann::json& json);  // throws on anything missing

// One sample of the order: its index in the source, and a seed of its own for augmentation.
struct Sample {
  std::uint64_t index = 0;
  std::uint64_t epoch = 0;
  std::uint64_t seed = 0;
};

// A seeded permutation of 0..n-1 that is computed, not stored: a Feistel network over the next even
// number of bits, walked until the value lies below n (Black, Rogaway 2002). Constant memory for
// any n, fewer than four rounds of walking expected.
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

// The samples of epoch e are a permutation drawn from (seed, e); epochs follow one another
// without a gap, and rank r of w takes every w-th sample beginning with the r-th.
class SampleOrder {
 public:
  SampleOrder(std::uint64_t size, const OrderOptions& options);

  Sample next();

  // Asked between steps, when every rank has taken equally many.
  StreamPosition position() const { return {taken_, options_.seed, permutation_.size()}; }
  void seek(const StreamPosition& position);

  std::uint64_t size() const { return permutation_.size(); }

 private:
  OrderOptions options_;
  std::uint64_t taken_ = 0;
  std::uint64_t epoch_ = 0;
  Permutation permutation_;  // of epoch_
};

}  // namespace rode::lab
