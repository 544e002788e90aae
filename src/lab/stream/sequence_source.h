// SPDX-License-Identifier: Apache-2.0
// Sequences of tokens by index, and the two ways to go through them: shuffled, and in order.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "lab/stream/sample_order.h"
#include "lab/text/token_folder.h"

namespace rode::lab {

// Windows of length() + 1 tokens: the inputs, and the targets shifted by one. Reading is
// thread-safe.
class SequenceSource {
 public:
  virtual ~SequenceSource() = default;

  virtual std::uint64_t size() const = 0;
  virtual std::int64_t length() const = 0;
  virtual std::int64_t vocab_size() const = 0;
  virtual void read(std::uint64_t index, std::span<std::int64_t> tokens) const = 0;
  // The lowest expected loss (nats per token) that any model can reach, where it is known.
  virtual std::optional<double> best_loss() const { return std::nullopt; }
  // A note for the user of the source; may be empty.
  virtual std::string note() const { return {}; }
};

// Window i holds tokens i T .. i T + T of the shards laid end to end: windows overlap by the
// one token that is a target in the first and an input in the second.
class ShardSequences : public SequenceSource {
 public:
  // `vocab_size` is the model's: a token beyond it is an error, not an index out of bounds.
  ShardSequences(TokenFolder folder, std::int64_t length, std::int64_t vocab_size);

  std::uint64_t size() const override { return size_; }
  std::int64_t length() const override { return length_; }
  std::int64_t vocab_size() const override { return vocab_size_; }
  void read(std::uint64_t index, std::span<std::int64_t> tokens) const override;

  std::string note() const override { return folder_.note(); }

  const TokenFolder& folder() const { return folder_; }

 private:
  TokenFolder folder_;
  std::vector<std::uint64_t> starts_;  // of each shard, in tokens
  std::int64_t length_;
  std::int64_t vocab_size_;
  std::uint64_t size_ = 0;
};

// Endless shuffled batches. `out` of next() is (batch, length + 1), row by row.
class TokenStream {
 public:
  TokenStream(std::shared_ptr<const SequenceSource> source, const OrderOptions& options);

  void next(std::int64_t batch, std::span<std::int64_t> out);

  StreamPosition position() const { return order_.position(); }
  void seek(const StreamPosition& position) { order_.seek(position); }
  const SequenceSource& source() const { return *source_; }

 private:
  std::shared_ptr<const SequenceSource> source_;  // shared: several streams over one mapping
  SampleOrder order_;
};

// The first `limit` windows (0: all) in order, the same for every optimizer and seed; rank r of
// w takes every w-th.
class EvaluationSequences {
 public:
  EvaluationSequences(std::shared_ptr<const SequenceSource> source, std::uint64_t limit,
                      std::uint64_t rank = 0, std::uint64_t world = 1);

  // Rows filled: `batch`, fewer at the end, then 0.
  std::int64_t next(std::int64_t batch, std::span<std::int64_t> out);
  void rewind() { next_ = rank_; }
  std::uint64_t size() const { return size_; }  // windows of all ranks

 private:
  std::shared_ptr<const SequenceSource> source_;
  std::uint64_t size_;
  std::uint64_t rank_;
  std::uint64_t world_;
  std::uint64_t next_;
};

}  // namespace rode::lab
