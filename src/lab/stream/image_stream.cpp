// SPDX-License-Identifier: Apache-2.0
// Batches of images on several threads.
#include "lab/stream/image_stream.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "core/cores.h"
#include "rode/error.h"

namespace rode::lab {
namespace {

constexpr std::string_view kImages = "images";

void check(const ImageTransform& transform) {
  const bool good = transform.size >= 1 && transform.eval_resize >= transform.size &&
                    transform.area_min > 0 && transform.area_min <= transform.area_max &&
                    transform.area_max <= 1 && transform.aspect_min > 0 &&
                    transform.aspect_min <= transform.aspect_max;
  if (good) return;
  throw Error(ErrorKind::invalid_argument, kImages,
              fmt::format("size {}, eval_resize {}, area {} to {}, aspect {} to {}; expected "
                          "eval_resize >= size >= 1, 0 < area <= 1 and 0 < aspect, in order",
                          transform.size, transform.eval_resize, transform.area_min,
                          transform.area_max, transform.aspect_min, transform.aspect_max));
}

std::size_t image_values(const ImageTransform& transform) {
  return 3 * static_cast<std::size_t>(transform.size) * static_cast<std::size_t>(transform.size);
}

void require_room(std::size_t room, std::size_t images, const ImageTransform& transform) {
  if (room >= images * image_values(transform)) return;
  throw Error(ErrorKind::shape, kImages,
              fmt::format("room for {} values; expected {} x 3 x {} x {}", room, images,
                          transform.size, transform.size));
}

void put(const Image& view, const ImageTransform& transform, float* to) {
  to_planes(view, transform, to);
}
void put(const Image& view, const ImageTransform& /*transform*/, std::uint8_t* to) {
  to_planes(view, to);
}

}  // namespace

void on_threads(int threads, std::size_t count, const std::function<void(std::size_t)>& work) {
  const std::size_t workers =
      std::min(static_cast<std::size_t>(threads > 0 ? threads : available_cores()), count);
  std::vector<std::exception_ptr> failures(count);
  std::atomic<std::size_t> next{0};
  const auto run = [&] {
    for (std::size_t i = next++; i < count; i = next++) {
      try {
        work(i);
      } catch (...) {
        failures[i] = std::current_exception();
      }
    }
  };
  {
    std::vector<std::jthread> pool;
    for (std::size_t t = 1; t < workers; ++t) pool.emplace_back(run);
    run();
  }
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

ImageStream::ImageStream(std::shared_ptr<const ImageSource> source, const ImageTransform& transform,
                         const OrderOptions& options, int threads)
    : source_(std::move(source)),
      transform_(transform),
      order_(source_->size(), options),
      threads_(threads) {
  check(transform_);
}

template <class Value>
void ImageStream::fill(std::span<Value> pixels, std::span<std::int64_t> labels) {
  require_room(pixels.size(), labels.size(), transform_);
  std::vector<Sample> samples(labels.size());
  for (Sample& sample : samples) sample = order_.next();
  on_threads(threads_, samples.size(), [&](std::size_t i) {
    Image image;
    Image view;
    labels[i] = source_->read(samples[i].index, image);
    Random random(samples[i].seed);
    training_view(image, transform_, random, view);
    put(view, transform_, pixels.data() + i * image_values(transform_));
  });
}

void ImageStream::next(std::span<float> pixels, std::span<std::int64_t> labels) {
  fill(pixels, labels);
}
void ImageStream::next(std::span<std::uint8_t> pixels, std::span<std::int64_t> labels) {
  fill(pixels, labels);
}

EvaluationImages::EvaluationImages(std::shared_ptr<const ImageSource> source,
                                   const ImageTransform& transform, std::uint64_t limit,
                                   int threads, std::uint64_t rank, std::uint64_t world)
    : source_(std::move(source)),
      transform_(transform),
      threads_(threads),
      size_(limit == 0 ? source_->size() : std::min(limit, source_->size())),
      rank_(rank),
      world_(world),
      next_(rank) {
  check(transform_);
  if (world == 0 || rank >= world) {
    throw Error(
        ErrorKind::invalid_argument, kImages,
        fmt::format("rank {} of {}; expected a rank below the number of ranks", rank, world));
  }
}

template <class Value>
std::size_t EvaluationImages::fill(std::span<Value> pixels, std::span<std::int64_t> labels) {
  require_room(pixels.size(), labels.size(), transform_);
  const std::uint64_t left = next_ < size_ ? (size_ - next_ + world_ - 1) / world_ : 0;
  const std::size_t count = std::min<std::size_t>(labels.size(), left);
  on_threads(threads_, count, [&](std::size_t i) {
    Image image;
    Image view;
    labels[i] = source_->read(next_ + i * world_, image);
    evaluation_view(image, transform_, view);
    put(view, transform_, pixels.data() + i * image_values(transform_));
  });
  next_ += count * world_;
  return count;
}

std::size_t EvaluationImages::next(std::span<float> pixels, std::span<std::int64_t> labels) {
  return fill(pixels, labels);
}
std::size_t EvaluationImages::next(std::span<std::uint8_t> pixels, std::span<std::int64_t> labels) {
  return fill(pixels, labels);
}

}  // namespace rode::lab
