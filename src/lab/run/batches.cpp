// SPDX-License-Identifier: Apache-2.0
// Streams of tokens or images with one interface, and batches made ahead.
#include "lab/run/batches.h"

#include <algorithm>
#include <utility>

#include "lab/stream/image_stream.h"
#include "lab/stream/prefetch.h"
#include "lab/stream/sequence_source.h"
#include "lab/task/sources.h"

namespace rode::lab {
namespace {

constexpr std::size_t kAhead = 2;
constexpr int kAllThreads = 0;

std::uint64_t eval_limit(const Task& task) {
  return static_cast<std::uint64_t>(task.data.eval_samples);
}

}  // namespace

struct BatchSource::Impl {
  Task task;
  // Those of tokens, or those of images.
  std::unique_ptr<TokenStream> tokens;
  std::unique_ptr<EvaluationSequences> eval_tokens;
  std::unique_ptr<ImageStream> images;
  std::unique_ptr<EvaluationImages> eval_images;
  std::vector<std::string> notes;
  std::unique_ptr<Prefetcher<Batch>> prefetcher;  // last: its thread uses the streams

  Batch empty(std::int64_t rows) const {
    Batch batch;
    batch.rows = rows;
    const auto count = static_cast<std::size_t>(rows);
    if (task.is_language()) {
      batch.tokens.resize(count * static_cast<std::size_t>(task.data.sequence + 1));
    } else {
      const auto size = static_cast<std::size_t>(task.data.image_size);
      batch.pixels.resize(count * 3 * size * size);
      batch.labels.resize(count);
    }
    return batch;
  }

  // An epoch ends with what is left of it; a run by steps has no epochs.
  std::int64_t next_rows() const {
    if (task.train.epochs == 0) return task.train.batch;
    const StreamPosition at = tokens ? tokens->position() : images->position();
    const auto left = static_cast<std::int64_t>(at.size - at.taken % at.size);
    return std::min(task.train.batch, left);
  }

  Batch make() {
    Batch batch = empty(next_rows());
    if (tokens) {
      tokens->next(batch.rows, batch.tokens);
      batch.after = tokens->position();
    } else {
      images->next(batch.pixels, batch.labels);
      batch.after = images->position();
    }
    return batch;
  }
};

BatchSource::BatchSource(const Task& task, std::uint64_t seed,
                         const std::filesystem::path& data_folder)
    : impl_(std::make_unique<Impl>()) {
  impl_->task = task;
  const OrderOptions order{.seed = seed};
  if (task.is_language()) {
    const auto train = open_sequences(task, Split::train, data_folder);
    const auto valid = open_sequences(task, Split::valid, data_folder);
    impl_->tokens = std::make_unique<TokenStream>(train, order);
    impl_->eval_tokens = std::make_unique<EvaluationSequences>(valid, eval_limit(task));
    for (const std::string& note : {train->note(), valid->note()}) {
      if (!note.empty()) impl_->notes.push_back(note);
    }
  } else {
    const ImageTransform transform = image_transform(task);
    impl_->images = std::make_unique<ImageStream>(open_images(task, Split::train, data_folder),
                                                  transform, order, kAllThreads);
    impl_->eval_images = std::make_unique<EvaluationImages>(
        open_images(task, Split::valid, data_folder), transform, eval_limit(task), kAllThreads);
  }
}

BatchSource::~BatchSource() = default;

std::uint64_t BatchSource::epoch_samples() const {
  return impl_->tokens ? impl_->tokens->source().size() : impl_->images->source().size();
}

std::optional<double> BatchSource::best_loss() const {
  return impl_->tokens ? impl_->tokens->source().best_loss() : std::nullopt;
}

std::int64_t BatchSource::units_per_row() const {
  return impl_->tokens ? impl_->task.data.sequence : 1;
}

std::vector<std::string> BatchSource::notes() const { return impl_->notes; }

StreamPosition BatchSource::position() const {
  return impl_->tokens ? impl_->tokens->position() : impl_->images->position();
}

void BatchSource::begin(const StreamPosition& position) {
  impl_->prefetcher.reset();
  if (impl_->tokens) {
    impl_->tokens->seek(position);
  } else {
    impl_->images->seek(position);
  }
  impl_->prefetcher =
      std::make_unique<Prefetcher<Batch>>([impl = impl_.get()] { return impl->make(); }, kAhead);
}

Batch BatchSource::next() { return impl_->prefetcher->next(); }

std::int64_t BatchSource::evaluation_samples() const {
  return static_cast<std::int64_t>(impl_->eval_tokens ? impl_->eval_tokens->size()
                                                      : impl_->eval_images->size());
}

void BatchSource::rewind_evaluation() {
  if (impl_->eval_tokens) {
    impl_->eval_tokens->rewind();
  } else {
    impl_->eval_images->rewind();
  }
}

std::optional<Batch> BatchSource::next_evaluation(std::int64_t rows) {
  Batch batch = impl_->empty(rows);
  if (impl_->eval_tokens) {
    batch.rows = impl_->eval_tokens->next(rows, batch.tokens);
  } else {
    batch.rows = static_cast<std::int64_t>(impl_->eval_images->next(batch.pixels, batch.labels));
  }
  if (batch.rows == 0) return std::nullopt;
  return batch;
}

}  // namespace rode::lab
