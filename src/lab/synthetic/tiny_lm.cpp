// SPDX-License-Identifier: Apache-2.0
// The synthetic language: tables from a seed, sequences by index, exact entropy.
#include "lab/synthetic/tiny_lm.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "lab/base/random.h"
#include "rode/error.h"

namespace rode::lab {

TinyLm::TinyLm(const TinyLmOptions& options, std::uint64_t size, std::int64_t length,
               std::uint64_t split)
    : options_(options), size_(size), length_(length), split_(split) {
  const bool good = options.vocab_size >= 2 && options.classes >= 1 && options.topics >= 1 &&
                    options.topics <= options.vocab_size && options.branches >= 1 &&
                    options.branches <= options.vocab_size && options.decay > 0 &&
                    options.decay <= 1 && size >= 1 && length >= 1;
  if (!good) {
    throw Error(ErrorKind::invalid_argument, "tiny-lm",
                fmt::format("vocab_size {}, classes {}, topics {}, branches {}, decay {}, {} "
                            "sequences of {}; expected topics and branches of 1 to vocab_size, "
                            "0 < decay <= 1 and positive sizes",
                            options.vocab_size, options.classes, options.topics, options.branches,
                            options.decay, size, length));
  }
  double sum = 0;
  for (std::int64_t k = 0; k < options.branches; ++k) {
    sum += probabilities_.emplace_back(std::pow(options.decay, static_cast<double>(k)));
  }
  for (double& p : probabilities_) p /= sum;

  // The first `branches` of a shuffle, for every context.
  Random random(derive_seed(options.language_seed, {2}));
  const std::int64_t contexts = options.topics * options.classes * options.vocab_size;
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(options.vocab_size));
  for (std::int64_t context = 0; context < contexts; ++context) {
    std::iota(tokens.begin(), tokens.end(), std::int64_t{0});
    for (std::size_t k = 0; k < probabilities_.size(); ++k) {
      std::swap(tokens[k], tokens[k + random.below(tokens.size() - k)]);
      successors_.push_back(tokens[k]);
    }
  }
}

std::span<const std::int64_t> TinyLm::successors(std::int64_t topic, std::int64_t before_last,
                                                 std::int64_t last) const {
  const std::int64_t context =
      (topic * options_.classes + before_last % options_.classes) * options_.vocab_size + last;
  return std::span(successors_)
      .subspan(static_cast<std::size_t>(context) * probabilities_.size(), probabilities_.size());
}

void TinyLm::read(std::uint64_t index, std::span<std::int64_t> tokens) const {
  Random random(derive_seed(options_.language_seed, {3, split_, index}));
  tokens[0] = static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(options_.topics)));
  for (std::size_t i = 1; i < tokens.size(); ++i) {
    const auto next = successors(tokens[0], tokens[i < 2 ? 0 : i - 2], tokens[i - 1]);
    double left = random.uniform();
    std::size_t k = 0;
    while (k + 1 < probabilities_.size() && left >= probabilities_[k]) left -= probabilities_[k++];
    tokens[i] = next[k];
  }
}

std::optional<double> TinyLm::best_loss() const {
  double entropy = 0;
  for (const double p : probabilities_) entropy -= p * std::log(p);
  return entropy;
}

double TinyLm::probability(std::span<const std::int64_t> before, std::int64_t token) const {
  const std::size_t n = before.size();
  const auto next = successors(before[0], before[n < 2 ? 0 : n - 2], before[n - 1]);
  const auto found = std::find(next.begin(), next.end(), token);
  return found == next.end() ? 0.0 : probabilities_[static_cast<std::size_t>(found - next.begin())];
}

}  // namespace rode::lab
