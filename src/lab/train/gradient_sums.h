// SPDX-License-Identifier: Apache-2.0
// Gradients between the parts of a batch, and between the ranks of a run.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include "lab/train/gradient_buckets.h"

namespace rode::lab {

// Once each, in the order of the model, also where modules share one.
inline std::vector<at::Tensor> trained_parameters(const ::torch::nn::Module& module) {
  std::vector<at::Tensor> out;
  for (const at::Tensor& parameter : module.parameters()) {
    const auto same = [&](const at::Tensor& other) { return other.is_same(parameter); };
    if (parameter.requires_grad() && std::ranges::none_of(out, same)) out.push_back(parameter);
  }
  return out;
}

// Sums of bf16 gradients in fp32: of a running sum in bf16 the last parts of a batch would move
// only the last of its eight bits. Rounded once, at the end.
class GradientSums {
 public:
  explicit GradientSums(std::vector<at::Tensor> parameters)
      : parameters_(std::move(parameters)), sums_(parameters_.size()) {}

  // Takes the gradients away: the next part begins at zero.
  void take() {
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < sums_.size(); ++i) {
      at::Tensor& gradient = parameters_[i].mutable_grad();
      if (!gradient.defined()) continue;
      if (sums_[i].defined()) {
        sums_[i].add_(gradient);
      } else {
        sums_[i] = gradient.to(at::kFloat);
      }
      gradient.reset();
    }
  }
  // `ranks`: adds up those of several.
  void give_back(GradientBuckets* ranks) {
    if (ranks != nullptr) ranks->sum(sums_);
    for (std::size_t i = 0; i < sums_.size(); ++i) {
      if (sums_[i].defined()) {
        parameters_[i].mutable_grad() = sums_[i].to(parameters_[i].scalar_type());
      }
      sums_[i].reset();
    }
  }

 private:
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> sums_;  // fp32, by parameter
};

}  // namespace rode::lab
