// SPDX-License-Identifier: Apache-2.0
// The seeded order of samples, and its position as JSON.
#include "lab/stream/sample_order.h"

#include <algorithm>
#include <bit>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lab/base/random.h"
#include "rode/error.h"

namespace rode::lab {
namespace {

constexpr std::string_view kSampleOrder = "data stream";

Permutation of_epoch(std::uint64_t size, std::uint64_t seed, std::uint64_t epoch) {
  return {size, derive_seed(seed, {0, epoch})};
}

}  // namespace

nlohmann::json to_json(const StreamPosition& position) {
  return {{"taken", position.taken}, {"seed", position.seed}, {"size", position.size}};
}

StreamPosition stream_position(const nlohmann::json& json) {
  const auto field = [&](const char* key) {
    if (!json.is_object() || !json.contains(key) || !json.at(key).is_number_unsigned()) {
      throw Error(ErrorKind::state_mismatch, kSampleOrder,
                  fmt::format("the saved position has no whole number '{}'; expected taken, seed "
                              "and size; use another checkpoint",
                              key));
    }
    return json.at(key).get<std::uint64_t>();
  };
  return {field("taken"), field("seed"), field("size")};
}

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

SampleOrder::SampleOrder(std::uint64_t size, const OrderOptions& options)
    : options_(options), permutation_(of_epoch(size, options.seed, 0)) {
  if (size == 0) {
    throw Error(ErrorKind::invalid_argument, kSampleOrder,
                "the source holds no sample; expected at least one; add data or shorten the "
                "sequences");
  }
  if (options.world == 0 || options.rank >= options.world) {
    throw Error(ErrorKind::invalid_argument, kSampleOrder,
                fmt::format("rank {} of {}; expected a rank below the number of ranks",
                            options.rank, options.world));
  }
}

Sample SampleOrder::next() {
  const std::uint64_t place = taken_ + options_.rank;
  const std::uint64_t epoch = place / size();
  if (epoch != epoch_) {
    permutation_ = of_epoch(size(), options_.seed, epoch);
    epoch_ = epoch;
  }
  taken_ += options_.world;
  const std::uint64_t index = permutation_(place % size());
  return {index, epoch, derive_seed(options_.seed, {1, epoch, index})};
}

void SampleOrder::seek(const StreamPosition& position) {
  if (position.seed != options_.seed || position.size != size()) {
    throw Error(
        ErrorKind::state_mismatch, kSampleOrder,
        fmt::format(
            "the saved position belongs to {} samples with seed {}, but the current data have {} "
            "samples with seed {}; resume with the same data, sequence length and seed",
            position.size, position.seed, size(), options_.seed));
  }
  taken_ = position.taken;
}

}  // namespace rode::lab
