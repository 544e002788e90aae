// SPDX-License-Identifier: Apache-2.0
// Procedural images: each class is a region of the plane, drawn by asking points.
#include "lab/synthetic/tiny_vision.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include <fmt/format.h>

#include "lab/base/random.h"
#include "rode/error.h"

namespace rode::lab {
namespace {

// Whether the figure of a class covers (x, y): its own axes, about 1 in size.
bool covers(std::int64_t label, double x, double y) {
  const double radius = std::hypot(x, y);
  const auto odd = [](double v) { return (static_cast<std::int64_t>(std::floor(v)) & 1) != 0; };
  switch (label) {
    case 0: return radius < 1;                                               // disc
    case 1: return radius < 1 && radius > 0.6;                               // ring
    case 2: return std::max(std::abs(x), std::abs(y)) < 0.85;                // square
    case 3: return y > -0.6 && y < 1 - 1.7 * std::abs(x);                    // triangle
    case 4: return std::min(std::abs(x), std::abs(y)) < 0.25 && radius < 1;  // cross
    case 5: return std::abs(x) < 0.35 && std::abs(y) < 1.2;                  // bar
    case 6: return odd(3 * x);                                               // stripes
    case 7: return odd(3 * x) != odd(3 * y);                                 // chequers
    case 8: return odd(3 * radius);                                          // circles
    case 9: return std::hypot(x * 2 - std::round(x * 2), y * 2 - std::round(y * 2)) < 0.3;  // dots
    case 10: return radius < 1 && y > 0;                           // half disc
    default: return odd(std::atan2(y, x) * 4 / std::numbers::pi);  // rays
  }
}

using Colour = std::array<double, 3>;

Colour colour(Random& random) {
  return {random.uniform(0, 255), random.uniform(0, 255), random.uniform(0, 255)};
}

// Two colours that can be distinguished under the noise.
std::array<Colour, 2> contrasting(Random& random) {
  for (;;) {
    const std::array<Colour, 2> pair = {colour(random), colour(random)};
    double distance = 0;
    for (std::size_t c = 0; c < 3; ++c) distance += std::abs(pair[0][c] - pair[1][c]);
    if (distance > 150) return pair;
  }
}

}  // namespace

TinyVision::TinyVision(std::uint64_t size, int side, std::uint64_t split, std::uint64_t seed)
    : size_(size), side_(side), split_(split), seed_(seed) {
  if (size < 1 || side < 8) {
    throw Error(
        ErrorKind::invalid_argument, "tiny-vision",
        fmt::format("{} images of side {}; expected at least 1 of side 8 or more", size, side));
  }
}

std::int64_t TinyVision::read(std::uint64_t index, Image& image) const {
  constexpr int kSub = 3;  // points per pixel and axis: smooth edges
  constexpr double kNoise = 25;
  const auto label = static_cast<std::int64_t>(index % kClasses);
  Random random(derive_seed(seed_, {4, split_, index}));
  const auto colours = contrasting(random);
  const double angle = random.uniform(0, 2 * std::numbers::pi);
  const double cosine = std::cos(angle);
  const double sine = std::sin(angle);
  const double scale = side_ * random.uniform(0.2, 0.4);
  const double centre_x = side_ * random.uniform(0.35, 0.65);
  const double centre_y = side_ * random.uniform(0.35, 0.65);
  image.reshape(side_, side_);
  for (int row = 0; row < side_; ++row) {
    for (int column = 0; column < side_; ++column) {
      int inside = 0;
      for (int sub = 0; sub < kSub * kSub; ++sub) {
        const double dx = (column + (sub % kSub + 0.5) / kSub - centre_x) / scale;
        const double dy = (row + (sub / kSub + 0.5) / kSub - centre_y) / scale;  // NOLINT
        inside += covers(label, dx * cosine + dy * sine, dy * cosine - dx * sine) ? 1 : 0;
      }
      const double share = static_cast<double>(inside) / (kSub * kSub);
      for (std::size_t c = 0; c < 3; ++c) {
        const double value = colours[0][c] + share * (colours[1][c] - colours[0][c]) +
                             kNoise * (random.uniform() + random.uniform() - 1);
        image.at(column, row)[c] = static_cast<std::uint8_t>(std::clamp(value, 0.0, 255.0));
      }
    }
  }
  return label;
}

}  // namespace rode::lab
