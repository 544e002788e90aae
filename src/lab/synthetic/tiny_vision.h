// SPDX-License-Identifier: Apache-2.0
// Procedural images of twelve classes: the task `tiny-vision`.
#pragma once

#include <cstdint>

#include "lab/images/image.h"

namespace rode::lab {

// A figure or a pattern in two random colours, at a random place, size and angle, under noise.
// Image i is of class i mod 12; `split` is 0 for training, 1 for validation.
class TinyVision : public ImageSource {
 public:
  static constexpr std::int64_t kClasses = 12;

  TinyVision(std::uint64_t size, int side, std::uint64_t split, std::uint64_t seed = 20240520);

  std::uint64_t size() const override { return size_; }
  std::int64_t classes() const override { return kClasses; }
  std::int64_t read(std::uint64_t index, Image& image) const override;

 private:
  std::uint64_t size_;
  int side_;
  std::uint64_t split_;
  std::uint64_t seed_;
};

}  // namespace rode::lab
