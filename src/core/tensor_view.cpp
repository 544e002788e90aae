// SPDX-License-Identifier: Apache-2.0
// Shapes: checks, element counts, printing.
#include "rode/tensor_view.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "rode/error.h"

namespace rode {

Shape::Shape(std::span<const std::int64_t> dims) {
  if (dims.size() > static_cast<std::size_t>(kMaxRank)) {
    throw Error(ErrorKind::shape, "shape",
                fmt::format("rank {} exceeds the {} supported dimensions; "
                            "merge dimensions before stepping",
                            dims.size(), kMaxRank));
  }
  for (const std::int64_t d : dims) {
    if (d < 0) {
      throw Error(ErrorKind::shape, "shape",
                  fmt::format("extent {} is negative; expected 0 or more", d));
    }
    dims_[static_cast<std::size_t>(rank_++)] = d;
  }
}

std::int64_t Shape::numel() const {
  std::int64_t count = 1;
  for (const std::int64_t d : dims()) {
    if (__builtin_mul_overflow(count, d, &count)) {
      throw Error(
          ErrorKind::shape, "shape",
          fmt::format("shape {} has more elements than 64 bits can count", to_string(*this)));
    }
  }
  return count;
}

bool Shape::operator==(const Shape& other) const {
  return std::ranges::equal(dims(), other.dims());
}

std::string to_string(const Shape& shape) {
  return fmt::format("({})", fmt::join(shape.dims(), ", "));
}

}  // namespace rode
