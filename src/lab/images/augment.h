// SPDX-License-Identifier: Apache-2.0
// From an image of any size to what a model sees, in training and in evaluation.
#pragma once

#include <array>

#include "lab/base/random.h"
#include "lab/images/image.h"
#include "lab/images/resize.h"

namespace rode::lab {

// Training: a part of random area and shape, resized to size x size, mirrored half of the time.
// Evaluation: the shorter side resized to eval_resize, then the central size x size.
struct ImageTransform {
  int size = 224;
  int eval_resize = 224;  // >= size
  bool augment = true;    // false: training sees what evaluation sees
  double area_min = 0.08;
  double area_max = 1.0;
  double aspect_min = 3.0 / 4.0;
  double aspect_max = 4.0 / 3.0;
  double flip = 0.5;
  // Values are (v / 255 - mean) / deviation.
  std::array<float, 3> mean = {0.485F, 0.456F, 0.406F};
  std::array<float, 3> deviation = {0.229F, 0.224F, 0.225F};
};

// Up to ten draws of an area (uniform) and an aspect (log-uniform) until the part fits; then the
// largest central part whose aspect is allowed.
Box random_part(int width, int height, const ImageTransform& transform, Random& random);

// Both give size x size, row by row.
void training_view(const Image& from, const ImageTransform& transform, Random& random, Image& to);
void evaluation_view(const Image& from, const ImageTransform& transform, Image& to);

// Planes of red, green and blue: 3 * width * height values.
void to_planes(const Image& from, const ImageTransform& transform, float* to);
void to_planes(const Image& from, std::uint8_t* to);

}  // namespace rode::lab
