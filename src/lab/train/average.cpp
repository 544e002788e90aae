// SPDX-License-Identifier: Apache-2.0
// Running means of tensors.
#include "lab/train/average.h"

#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/nn/module.h>

namespace rode::lab {
namespace {

std::vector<std::pair<std::string, at::Tensor>> averaged_tensors(Model& model) {
  std::vector<std::pair<std::string, at::Tensor>> out;
  for (const auto& item : model.module().named_parameters()) {
    out.emplace_back(item.key(), item.value());
  }
  for (const auto& item : model.module().named_buffers()) {
    if (item.value().is_floating_point()) out.emplace_back(item.key(), item.value());
  }
  return out;
}

}  // namespace

void WeightAverage::restart(Model& model, std::int64_t count) {
  count_ = count;
  means_.clear();
  if (count == 0) return;
  for (const auto& [name, tensor] : averaged_tensors(model)) {
    means_.emplace_back(name, at::zeros_like(tensor.detach(), at::kFloat));
  }
}

void WeightAverage::add(Model& model) {
  const ::torch::NoGradGuard no_grad;
  const auto tensors = averaged_tensors(model);
  ++count_;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto& [name, tensor] = tensors[i];
    if (count_ == 1) {
      means_.emplace_back(name, tensor.detach().to(at::kFloat, /*non_blocking=*/false,
                                                   /*copy=*/true));
      continue;
    }
    at::Tensor& mean = means_[i].second;
    mean.add_(tensor.to(at::kFloat) - mean, 1.0 / static_cast<double>(count_));
  }
}

WeightAverage::Use::Use(const WeightAverage& average, Model& model) {
  const ::torch::NoGradGuard no_grad;
  const auto tensors = averaged_tensors(model);
  // All copies first: one that does not fit in memory must not leave some averages set.
  for (const auto& [name, tensor] : tensors) own_.emplace_back(tensor, tensor.detach().clone());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    tensors[i].second.copy_(average.means_[i].second);
  }
}

WeightAverage::Use::~Use() {
  const ::torch::NoGradGuard no_grad;
  for (auto& [tensor, value] : own_) tensor.copy_(value);
}

}  // namespace rode::lab
