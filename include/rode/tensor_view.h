// SPDX-License-Identifier: Apache-2.0
// Borrowed, contiguous, row-major tensors of any rank up to 8.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "rode/dtype.h"

namespace rode {

inline constexpr int kMaxRank = 8;

// Extents of a tensor; rank 0 is a scalar with one element.
class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<std::int64_t> dims) : Shape(std::span(dims.begin(), dims.size())) {}
  explicit Shape(std::span<const std::int64_t> dims);  // throws on rank > 8 or a negative extent

  int rank() const { return rank_; }
  std::int64_t operator[](int axis) const { return dims_[static_cast<std::size_t>(axis)]; }
  std::span<const std::int64_t> dims() const {
    return {dims_.data(), static_cast<std::size_t>(rank_)};
  }
  std::int64_t numel() const;  // throws if the product exceeds 64 bits
  bool operator==(const Shape& other) const;

 private:
  std::array<std::int64_t, kMaxRank> dims_{};
  int rank_ = 0;
};

std::string to_string(const Shape& shape);  // "(768, 3072)"

// Non-owning, trivially copyable. `data` may be null only if a function says so.
struct TensorView {
  void* data = nullptr;
  Shape shape;
  DType dtype = DType::f32;

  std::int64_t numel() const { return shape.numel(); }
  std::size_t bytes() const { return static_cast<std::size_t>(numel()) * size_of(dtype); }
};

struct ConstTensorView {
  const void* data = nullptr;
  Shape shape;
  DType dtype = DType::f32;

  ConstTensorView() = default;
  ConstTensorView(const void* d, Shape s, DType t) : data(d), shape(s), dtype(t) {}
  ConstTensorView(const TensorView& view)  // NOLINT: a mutable view is a read-only view
      : data(view.data), shape(view.shape), dtype(view.dtype) {}

  std::int64_t numel() const { return shape.numel(); }
  std::size_t bytes() const { return static_cast<std::size_t>(numel()) * size_of(dtype); }
};

// view(w.data(), {768, 768})
inline TensorView view(float* data, Shape shape) { return {data, shape, DType::f32}; }
inline ConstTensorView view(const float* data, Shape shape) { return {data, shape, DType::f32}; }

}  // namespace rode
