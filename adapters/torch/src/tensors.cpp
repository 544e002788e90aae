// SPDX-License-Identifier: Apache-2.0
// Types and shapes between torch and the engine.
#include "tensors.h"

#include <array>
#include <sstream>
#include <utility>

#include "rode/error.h"

namespace rode::torch {
namespace {

constexpr std::array<std::pair<DType, at::ScalarType>, 6> kTypes{{
    {DType::f32, at::kFloat},
    {DType::bf16, at::kBFloat16},
    {DType::i64, at::kLong},
    {DType::u16, at::kUInt16},
    {DType::f16, at::kHalf},
    {DType::f64, at::kDouble},
}};

}  // namespace

std::optional<DType> engine_dtype(at::ScalarType type) {
  for (const auto& [own, torch_type] : kTypes) {
    if (torch_type == type) return own;
  }
  return std::nullopt;
}

at::ScalarType torch_dtype(DType dtype) {
  for (const auto& [own, torch_type] : kTypes) {
    if (own == dtype) return torch_type;
  }
  throw Error(ErrorKind::dtype, "state", "torch has no type for " + std::string(to_string(dtype)));
}

Shape shape_of(const at::Tensor& tensor) {
  const at::IntArrayRef sizes = tensor.sizes();
  return Shape(std::span<const std::int64_t>(sizes.data(), sizes.size()));
}

std::string describe(const at::Tensor& tensor) {
  std::ostringstream out;
  out << tensor.scalar_type() << ' ';
  if (tensor.layout() != at::kStrided) out << tensor.layout() << ' ';
  out << to_string(shape_of(tensor)) << " on " << tensor.device();
  return out.str();
}

}  // namespace rode::torch
