// SPDX-License-Identifier: Apache-2.0
// Random parts, central parts, mirroring and planes.
#include "lab/images/augment.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace rode::lab {
namespace {

void mirror(Image& image) {
  for (int y = 0; y < image.height; ++y) {
    for (int left = 0, right = image.width - 1; left < right; ++left, --right) {
      std::swap_ranges(image.at(left, y), image.at(left, y) + 3, image.at(right, y));
    }
  }
}

int rounded(double value) { return static_cast<int>(std::lround(value)); }

Box central(int width, int height, int part_width, int part_height) {
  return {(width - part_width) / 2, (height - part_height) / 2, part_width, part_height};
}

}  // namespace

Box random_part(int width, int height, const ImageTransform& transform, Random& random) {
  constexpr int kDraws = 10;
  const double area = static_cast<double>(width) * height;
  for (int draw = 0; draw < kDraws; ++draw) {
    const double wanted = area * random.uniform(transform.area_min, transform.area_max);
    const double aspect =
        std::exp(random.uniform(std::log(transform.aspect_min), std::log(transform.aspect_max)));
    const int w = rounded(std::sqrt(wanted * aspect));
    const int h = rounded(std::sqrt(wanted / aspect));
    if (w < 1 || h < 1 || w > width || h > height) continue;
    const auto x = static_cast<int>(random.below(static_cast<std::uint64_t>(width - w) + 1));
    const auto y = static_cast<int>(random.below(static_cast<std::uint64_t>(height - h) + 1));
    return {x, y, w, h};
  }
  const double aspect = static_cast<double>(width) / height;
  if (aspect < transform.aspect_min) {
    return central(width, height, width,
                   std::clamp(rounded(width / transform.aspect_min), 1, height));
  }
  if (aspect > transform.aspect_max) {
    return central(width, height, std::clamp(rounded(height * transform.aspect_max), 1, width),
                   height);
  }
  return {0, 0, width, height};
}

void training_view(const Image& from, const ImageTransform& transform, Random& random, Image& to) {
  if (!transform.augment) {
    evaluation_view(from, transform, to);
    return;
  }
  const Box part = random_part(from.width, from.height, transform, random);
  resize(from, part, transform.size, transform.size, to);
  if (random.uniform() < transform.flip) mirror(to);
}

void evaluation_view(const Image& from, const ImageTransform& transform, Image& to) {
  // The longer side is rounded down.
  const auto shorter = static_cast<std::int64_t>(std::min(from.width, from.height));
  const auto scaled = [&](int side) {
    return static_cast<int>(static_cast<std::int64_t>(side) * transform.eval_resize / shorter);
  };
  Image whole;
  resize(from, {0, 0, from.width, from.height}, scaled(from.width), scaled(from.height), whole);
  if (whole.width == transform.size && whole.height == transform.size) {
    to = std::move(whole);
    return;
  }
  resize(whole, central(whole.width, whole.height, transform.size, transform.size), transform.size,
         transform.size, to);
}

void to_planes(const Image& from, const ImageTransform& transform, float* to) {
  const std::size_t plane = from.pixels.size() / 3;
  for (std::size_t c = 0; c < 3; ++c) {
    std::array<float, 256> values;  // one division per value, not per pixel
    for (std::size_t v = 0; v < values.size(); ++v) {
      values[v] = (static_cast<float>(v) / 255.0F - transform.mean[c]) / transform.deviation[c];
    }
    for (std::size_t i = 0; i < plane; ++i) to[c * plane + i] = values[from.pixels[i * 3 + c]];
  }
}

void to_planes(const Image& from, std::uint8_t* to) {
  const std::size_t plane = from.pixels.size() / 3;
  for (std::size_t c = 0; c < 3; ++c) {
    for (std::size_t i = 0; i < plane; ++i) to[c * plane + i] = from.pixels[i * 3 + c];
  }
}

}  // namespace rode::lab
