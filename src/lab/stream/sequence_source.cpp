// SPDX-License-Identifier: Apache-2.0
// Windows over token shards, shuffled streams and evaluation in order.
#include "lab/stream/sequence_source.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "rode/error.h"

namespace rode::lab {
namespace {

constexpr std::string_view kSequences = "token sequences";

void require_room(std::span<const std::int64_t> out, std::int64_t batch, std::int64_t length) {
  const auto needed = static_cast<std::size_t>(batch * (length + 1));
  if (batch < 0 || out.size() < needed) {
    throw Error(ErrorKind::shape, kSequences,
                fmt::format("room for {} tokens; expected {} x {}", out.size(), batch, length + 1));
  }
}

std::span<std::int64_t> row_of(std::span<std::int64_t> out, std::int64_t row, std::int64_t length) {
  const auto width = static_cast<std::size_t>(length + 1);
  return out.subspan(static_cast<std::size_t>(row) * width, width);
}

}  // namespace

ShardSequences::ShardSequences(TokenFolder folder, std::int64_t length, std::int64_t vocab_size)
    : folder_(std::move(folder)), length_(length), vocab_size_(vocab_size) {
  if (length < 1) {
    throw Error(ErrorKind::invalid_argument, kSequences,
                fmt::format("sequences of {} tokens; expected 1 or more", length));
  }
  folder_.require_vocab(vocab_size);
  std::uint64_t total = 0;
  for (const TokenShard& shard : folder_.shards()) {
    starts_.push_back(total);
    total += shard.tokens().size();
  }
  size_ = total == 0 ? 0 : (total - 1) / static_cast<std::uint64_t>(length);
  if (size_ == 0) {
    throw Error(
        ErrorKind::file, kSequences,
        fmt::format("{} tokens in '{}'; expected at least {} for one sequence; add text or "
                    "shorten the sequences",
                    total, printable(folder_.shards().front().path().string()), length + 1));
  }
}

void ShardSequences::read(std::uint64_t index, std::span<std::int64_t> tokens) const {
  std::uint64_t at = index * static_cast<std::uint64_t>(length_);
  std::size_t shard = static_cast<std::size_t>(
      std::upper_bound(starts_.begin(), starts_.end(), at) - starts_.begin() - 1);
  std::int64_t largest = -1;
  for (std::size_t filled = 0; filled < tokens.size(); ++shard) {
    const TokenShard& source = folder_.shards().at(shard);
    const std::size_t first = at - starts_[shard];
    const std::size_t count = std::min(source.tokens().size() - first, tokens.size() - filled);
    if (count > 0) source.check(first, count);
    for (std::size_t i = 0; i < count; ++i) {
      const std::int64_t token = source.tokens()[first + i];
      largest = std::max(largest, token);
      tokens[filled + i] = token;
    }
    filled += count;
    at += count;
  }
  if (largest >= vocab_size_) {
    throw Error(ErrorKind::file, kSequences,
                fmt::format("token {} in sequence {} of '{}'; expected tokens below the model's "
                            "vocabulary of {}; set a larger vocab_size or tokenise the text for "
                            "this model",
                            largest, index, printable(folder_.shards().front().path().string()),
                            vocab_size_));
  }
}

TokenStream::TokenStream(std::shared_ptr<const SequenceSource> source, const OrderOptions& options)
    : source_(std::move(source)), order_(source_->size(), options) {}

void TokenStream::next(std::int64_t batch, std::span<std::int64_t> out) {
  require_room(out, batch, source_->length());
  for (std::int64_t row = 0; row < batch; ++row) {
    source_->read(order_.next().index, row_of(out, row, source_->length()));
  }
}

EvaluationSequences::EvaluationSequences(std::shared_ptr<const SequenceSource> source,
                                         std::uint64_t limit, std::uint64_t rank,
                                         std::uint64_t world)
    : source_(std::move(source)),
      size_(limit == 0 ? source_->size() : std::min(limit, source_->size())),
      rank_(rank),
      world_(world),
      next_(rank) {
  if (world == 0 || rank >= world) {
    throw Error(
        ErrorKind::invalid_argument, kSequences,
        fmt::format("rank {} of {}; expected a rank below the number of ranks", rank, world));
  }
}

std::int64_t EvaluationSequences::next(std::int64_t batch, std::span<std::int64_t> out) {
  require_room(out, batch, source_->length());
  std::int64_t rows = 0;
  for (; rows < batch && next_ < size_; ++rows, next_ += world_) {
    source_->read(next_, row_of(out, rows, source_->length()));
  }
  return rows;
}

}  // namespace rode::lab
