// SPDX-License-Identifier: Apache-2.0
// Types and shapes between torch and the engine.
#include "tensors.h"

#include <array>
#include <map>
#include <sstream>
#include <utility>

#include "rode/error.h"

namespace rode::torch {
namespace {

constexpr std::array<std::pair<DType, at::ScalarType>, 7> kTypes{{
    {DType::f32, at::kFloat},
    {DType::bf16, at::kBFloat16},
    {DType::i64, at::kLong},
    {DType::u16, at::kUInt16},
    {DType::i8, at::kChar},
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

void check_parameter(const std::string& name, const at::Tensor& parameter) {
  if (!is_stepped(parameter.scalar_type()) || parameter.layout() != at::kStrided) {
    throw Error(ErrorKind::dtype, "parameters",
                "parameter '" + name + "' is " + describe(parameter) +
                    "; expected a dense one, Float or BFloat16; convert the module");
  }
  const c10::Device device = parameter.device();
  if (!device.is_cpu() && !device.is_cuda()) {
    throw Error(ErrorKind::unsupported, "parameters",
                "parameter '" + name + "' is on " + device.str() + "; expected cpu or cuda");
  }
}

void check_gradient(const std::string& name, const at::Tensor& grad, const at::Tensor& parameter) {
  if (grad.layout() == at::kStrided && grad.device() == parameter.device() &&
      grad.sizes() == parameter.sizes()) {
    return;
  }
  throw Error(ErrorKind::shape, "step",
              "gradient of '" + name + "' is " + describe(grad) +
                  "; expected a dense one like the parameter, " + describe(parameter) +
                  (grad.layout() != at::kStrided ? "; use sparse(false) in its module" : ""));
}

void refuse_shared_memory(const std::vector<std::string>& names,
                          const std::vector<at::Tensor>& tensors) {
  std::map<const void*, std::size_t> seen;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].numel() == 0) continue;
    const auto [same, is_new] = seen.emplace(tensors[i].const_data_ptr(), i);
    if (is_new) continue;
    throw Error(ErrorKind::invalid_argument, "parameters",
                "'" + names[same->second] + "' and '" + names[i] +
                    "' are two parameters on the same memory and would be stepped twice; register "
                    "one tensor in both modules to tie them");
  }
}

}  // namespace rode::torch
