// SPDX-License-Identifier: Apache-2.0
// Norms over lists of tensors.
#include "lab/train/norms.h"

#include <optional>
#include <utility>

#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/grad_mode.h>

namespace rode::lab {
namespace {

// Over all elements of all of them: single precision within a tensor, double over the tensors.
at::Tensor norm_of(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> norms;
  norms.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    norms.push_back(at::linalg_vector_norm(tensor, 2, std::nullopt, false, at::kFloat));
  }
  return at::linalg_vector_norm(at::stack(norms), 2, std::nullopt, false, at::kDouble);
}

constexpr double kTiny = 1e-12;  // of GlobalDiagnostics::update_ratio

}  // namespace

StepNorms::StepNorms(std::vector<at::Tensor> parameters) : parameters_(std::move(parameters)) {
  const ::torch::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : parameters_) {
    before_.push_back(parameter.detach().clone());
    if (parameter.grad().defined()) gradients.push_back(parameter.grad());
  }
  weights_ = norm_of(before_);
  gradients_ = gradients.empty() ? at::zeros_like(weights_) : norm_of(gradients);
}

at::Tensor StepNorms::finish() {
  const ::torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < before_.size(); ++i) before_[i].sub_(parameters_[i]);
  const at::Tensor norms = at::stack({weights_, norm_of(before_), gradients_});
  before_.clear();
  return norms;
}

std::vector<GlobalDiagnostics> read_norms(const std::vector<at::Tensor>& steps) {
  std::vector<GlobalDiagnostics> out;
  if (steps.empty()) return out;
  const at::Tensor host = at::stack(steps).to(at::kCPU);
  const double* values = host.const_data_ptr<double>();
  for (std::size_t i = 0; i < steps.size(); ++i, values += 3) {
    GlobalDiagnostics norms;
    norms.weight_norm = values[0];
    norms.update_norm = values[1];
    norms.update_ratio = values[1] / (values[0] + kTiny);
    norms.gradient_norm = values[2];
    out.push_back(norms);
  }
  return out;
}

}  // namespace rode::lab
