// SPDX-License-Identifier: Apache-2.0
// Batches of images, made on several threads with the same result on any number of them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "lab/images/augment.h"
#include "lab/stream/sample_order.h"

namespace rode::lab {

// Calls work(i) for i < count on `threads` threads (0: as many as the machine has). Of several
// exceptions that of the lowest i is thrown.
void on_threads(int threads, std::size_t count, const std::function<void(std::size_t)>& work);

// Endless shuffled batches for training. A sample's part and mirroring come from a seed of its
// own, drawn from the stream's seed, the epoch and its index.
class ImageStream {
 public:
  ImageStream(std::shared_ptr<const ImageSource> source, const ImageTransform& transform,
              const OrderOptions& options, int threads);

  // Pixels are (labels.size(), 3, size, size), normalised or as they are.
  void next(std::span<float> pixels, std::span<std::int64_t> labels);
  void next(std::span<std::uint8_t> pixels, std::span<std::int64_t> labels);

  StreamPosition position() const { return order_.position(); }
  void seek(const StreamPosition& position) { order_.seek(position); }
  const ImageSource& source() const { return *source_; }

 private:
  template <class Value>
  void fill(std::span<Value> pixels, std::span<std::int64_t> labels);

  std::shared_ptr<const ImageSource> source_;  // shared: training and evaluation of one file
  ImageTransform transform_;
  SampleOrder order_;
  int threads_;
};

// The first `limit` images (0: all) in order, by evaluation's view; rank r of w takes every w-th.
class EvaluationImages {
 public:
  EvaluationImages(std::shared_ptr<const ImageSource> source, const ImageTransform& transform,
                   std::uint64_t limit, int threads, std::uint64_t rank = 0,
                   std::uint64_t world = 1);

  // Images filled: labels.size(), fewer at the end, then 0.
  std::size_t next(std::span<float> pixels, std::span<std::int64_t> labels);
  std::size_t next(std::span<std::uint8_t> pixels, std::span<std::int64_t> labels);
  void rewind() { next_ = rank_; }
  std::uint64_t size() const { return size_; }  // images of all ranks

 private:
  template <class Value>
  std::size_t fill(std::span<Value> pixels, std::span<std::int64_t> labels);

  std::shared_ptr<const ImageSource> source_;
  ImageTransform transform_;
  int threads_;
  std::uint64_t size_;
  std::uint64_t rank_;
  std::uint64_t world_;
  std::uint64_t next_;
};

}  // namespace rode::lab
