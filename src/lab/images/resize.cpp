// SPDX-License-Identifier: Apache-2.0
// Bilinear resizing: weights per output pixel, then two passes.
#include "lab/images/resize.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include <fmt/format.h>

#include "rode/error.h"

namespace rode::lab {
namespace {

constexpr int kFractionBits = 22;  // 8 bits of value and some head room complete the 32

// For each output pixel: its first input pixel and the weights from there.
struct Weights {
  int taps = 0;  // room per pixel
  std::vector<int> first;
  std::vector<int> count;
  std::vector<std::int32_t> values;  // taps per pixel
};

// Half up and then towards zero, as Pillow rounds. NOLINTNEXTLINE(bugprone-incorrect-roundings)
int truncated_half_up(double value) { return static_cast<int>(value + 0.5); }

Weights weights_for(int input, int output) {
  const double scale = static_cast<double>(input) / output;
  const double support = std::max(scale, 1.0);
  Weights weights;
  weights.taps = static_cast<int>(std::ceil(support)) * 2 + 1;
  weights.values.resize(static_cast<std::size_t>(output) * static_cast<std::size_t>(weights.taps));
  std::vector<double> exact(static_cast<std::size_t>(weights.taps));
  for (int i = 0; i < output; ++i) {
    const double centre = (i + 0.5) * scale;
    const int first = std::max(0, truncated_half_up(centre - support));
    const int last = std::min(input, truncated_half_up(centre + support));
    double sum = 0;
    for (int j = first; j < last; ++j) {
      const double distance = std::abs((j - centre + 0.5) * (1.0 / support));
      exact[static_cast<std::size_t>(j - first)] = distance < 1.0 ? 1.0 - distance : 0.0;
      sum += exact[static_cast<std::size_t>(j - first)];
    }
    std::int32_t* out = weights.values.data() + static_cast<std::ptrdiff_t>(i) * weights.taps;
    for (int j = 0; j < last - first; ++j) {
      const double weight = exact[static_cast<std::size_t>(j)] / sum;
      out[j] = truncated_half_up(weight * (1 << kFractionBits));
    }
    weights.first.push_back(first);
    weights.count.push_back(last - first);
  }
  return weights;
}

std::uint8_t rounded(std::int32_t sum) {
  return static_cast<std::uint8_t>(std::clamp(sum >> kFractionBits, 0, 255));
}

// One output pixel: `count` pixels from `from` on, `stride` bytes apart.
void blend(const std::uint8_t* from, std::ptrdiff_t stride, const std::int32_t* weights, int count,
           std::uint8_t* to) {
  std::int32_t sums[3] = {1 << (kFractionBits - 1), 1 << (kFractionBits - 1),
                          1 << (kFractionBits - 1)};
  for (int j = 0; j < count; ++j, from += stride) {
    for (int c = 0; c < 3; ++c) sums[c] += from[c] * weights[j];
  }
  for (int c = 0; c < 3; ++c) to[c] = rounded(sums[c]);
}

}  // namespace

void resize(const Image& from, const Box& box, int width, int height, Image& to) {
  const bool inside = box.x >= 0 && box.y >= 0 && box.width > 0 && box.height > 0 &&
                      box.x + box.width <= from.width && box.y + box.height <= from.height;
  if (!inside || width < 1 || height < 1) {
    throw Error(
        ErrorKind::shape, "resize",
        fmt::format("part {}x{} at ({}, {}) of a {}x{} image to {}x{}; expected a part "
                    "inside the image and a size of at least 1",
                    box.width, box.height, box.x, box.y, from.width, from.height, width, height));
  }
  // Rows: every row of the box at the new width. A pass that keeps its length copies.
  const Weights across = weights_for(box.width, width);
  Image middle;
  middle.reshape(width, box.height);
  for (int y = 0; y < box.height; ++y) {
    if (width == box.width) {
      std::copy_n(from.at(box.x, box.y + y), static_cast<std::ptrdiff_t>(width) * 3,
                  middle.at(0, y));
      continue;
    }
    for (int x = 0; x < width; ++x) {
      const auto i = static_cast<std::size_t>(x);
      blend(from.at(box.x + across.first[i], box.y + y), 3,
            across.values.data() + static_cast<std::ptrdiff_t>(x) * across.taps, across.count[i],
            middle.at(x, y));
    }
  }
  if (height == box.height) {
    to = std::move(middle);
    return;
  }
  const Weights down = weights_for(box.height, height);
  to.reshape(width, height);
  for (int y = 0; y < height; ++y) {
    const auto i = static_cast<std::size_t>(y);
    const std::int32_t* weights = down.values.data() + static_cast<std::ptrdiff_t>(y) * down.taps;
    for (int x = 0; x < width; ++x) {
      blend(middle.at(x, down.first[i]), static_cast<std::ptrdiff_t>(width) * 3, weights,
            down.count[i], to.at(x, y));
    }
  }
}

}  // namespace rode::lab
