// SPDX-License-Identifier: Apache-2.0
// A synthetic language whose entropy is known exactly: the task `tiny-lm`.
#pragma once

#include <cstdint>
#include <vector>

#include "lab/stream/sequence_source.h"

namespace rode::lab {

// A sequence begins with one of `topics` markers, drawn uniformly. Every later token is drawn
// from `branches` distinct successors of its context
//   (topic, class of the token before the last, last token)
// where the k-th successor has probability proportional to decay^k. The successors are drawn
// once from language_seed. A model must thus learn bigrams, the class structure one token
// further back, and to look at the start of the sequence.
//
// Given what precedes it, every target has the same distribution up to the names of the tokens,
// so the lowest expected loss is its entropy H = -sum p_k log p_k, at every position.
struct TinyLmOptions {
  std::int64_t vocab_size = 64;
  std::int64_t classes = 4;  // token t is of class t mod classes
  std::int64_t topics = 2;
  std::int64_t branches = 8;
  double decay = 0.6;
  std::uint64_t language_seed = 20240520;
};

class TinyLm : public SequenceSource {
 public:
  // `split` is 0 for training, 1 for validation: other sequences of the same language.
  TinyLm(const TinyLmOptions& options, std::uint64_t size, std::int64_t length,
         std::uint64_t split);

  std::uint64_t size() const override { return size_; }
  std::int64_t length() const override { return length_; }
  std::int64_t vocab_size() const override { return options_.vocab_size; }
  void read(std::uint64_t index, std::span<std::int64_t> tokens) const override;
  std::optional<double> best_loss() const override;

  // The true probability of `token` after `before` (at least the topic's marker).
  double probability(std::span<const std::int64_t> before, std::int64_t token) const;

 private:
  std::span<const std::int64_t> successors(std::int64_t topic, std::int64_t before_last,
                                           std::int64_t last) const;

  TinyLmOptions options_;
  std::uint64_t size_;
  std::int64_t length_;
  std::uint64_t split_;
  std::vector<double> probabilities_;     // by rank, falling
  std::vector<std::int64_t> successors_;  // (topic, class, last, rank)
};

}  // namespace rode::lab
