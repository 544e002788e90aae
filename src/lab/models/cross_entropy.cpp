// SPDX-License-Identifier: Apache-2.0
// Cross entropy of a linear head, a part of the positions at a time.
#include <algorithm>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "lab/models/autocast.h"
#include "lab/models/functions.h"
#include "lab/models/fused/ops.h"
#include "lab/models/fused/tensors.h"
#include "rode/error.h"

namespace rode::lab {
namespace {

using ::torch::autograd::AutogradContext;
using ::torch::autograd::variable_list;

// Elements of logits that exist at a time: 64 MiB in fp32. By fused kernels 2 GiB in bf16: every
// part costs a pass over the gradient of the head, and a GPU's products want many rows.
constexpr std::int64_t kLogits = std::int64_t{1} << 24U;
constexpr std::int64_t kFusedLogits = std::int64_t{1} << 30U;

struct LossAndGrads {
  at::Tensor loss;    // mean, fp32 or wider
  at::Tensor hidden;  // undefined without gradients
  at::Tensor weight;
};

at::ScalarType wide_type(at::ScalarType type) {
  return type == at::kDouble ? at::kDouble : at::kFloat;
}

// hidden (n, width), targets (n). The products are in `type`, which autocast may have chosen.
LossAndGrads compute(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets,
                     std::int64_t rows, at::ScalarType type, bool with_grads) {
  const at::NoGradGuard no_grad;
  const std::int64_t count = hidden.size(0);
  const at::ScalarType wide = wide_type(type);
  const at::Tensor head = weight.to(type);
  LossAndGrads out;
  out.loss = at::zeros({}, hidden.options().dtype(wide));
  if (with_grads) {
    out.hidden = at::empty_like(hidden);
    out.weight = at::zeros(weight.sizes(), weight.options().dtype(wide));
  }
  for (std::int64_t begin = 0; begin < count; begin += rows) {
    const std::int64_t n = std::min(rows, count - begin);
    const at::Tensor part = hidden.narrow(0, begin, n).to(type);
    const at::Tensor target = targets.narrow(0, begin, n).unsqueeze(1);
    at::Tensor logits = at::mm(part, head.t()).to(wide);
    const at::Tensor log_sum = logits.logsumexp(1, /*keepdim=*/true);
    out.loss += (log_sum - logits.gather(1, target)).sum();
    if (!with_grads) continue;
    // The gradient of the logits, in their place: (softmax - 1 at the target) / count.
    logits.sub_(log_sum).exp_();
    logits.scatter_add_(1, target, at::full_like(target, -1, logits.options()));
    logits.mul_(1.0 / static_cast<double>(count));
    const at::Tensor grad = logits.to(type);
    out.hidden.narrow(0, begin, n).copy_(at::mm(grad, head));
    if (type == wide) {
      out.weight.addmm_(grad.t(), part);
    } else {
      out.weight.add_(at::mm(grad.t(), part));
    }
  }
  out.loss /= static_cast<double>(count);
  return out;
}

// The same by one kernel per part, which puts the gradient in the logits' place: they exist in
// `type` alone.
LossAndGrads compute_fused(const at::Tensor& hidden, const at::Tensor& weight,
                           const at::Tensor& targets, std::int64_t rows, at::ScalarType type,
                           bool with_grads) {
  const at::NoGradGuard no_grad;
  const std::int64_t count = hidden.size(0), vocabulary = weight.size(0);
  const at::Tensor head = fused::padded_copy(weight, type);
  const at::Tensor narrow = hidden.to(type).contiguous(), labels = targets.contiguous();
  const at::Tensor losses = at::empty({count}, hidden.options().dtype(at::kFloat));
  const at::Tensor space = at::empty({std::min(rows, count), head.size(0)}, narrow.options());
  LossAndGrads out;
  if (with_grads) out.hidden = at::empty_like(narrow);
  at::Tensor head_grad;
  for (std::int64_t begin = 0; begin < count; begin += rows) {
    const std::int64_t n = std::min(rows, count - begin);
    const at::Tensor part = narrow.narrow(0, begin, n);
    at::Tensor logits = space.narrow(0, 0, n);
    at::mm_out(logits, part, head.t());
    fused::cross_entropy({.logits = logits.data_ptr(),
                          .targets = labels.data_ptr<std::int64_t>() + begin,
                          .losses = losses.data_ptr<float>() + begin,
                          .rows = n,
                          .vocabulary = vocabulary,
                          .stride = head.size(0),
                          .scale = 1.0F / static_cast<float>(count),
                          .gradient = with_grads,
                          .type = fused::type_of(type)},
                         fused::stream_of(logits));
    if (!with_grads) continue;
    at::Tensor hidden_grad = out.hidden.narrow(0, begin, n);
    at::mm_out(hidden_grad, logits, head);
    if (head_grad.defined()) {
      fused::add_transposed_product(head_grad, logits, part);
    } else {
      head_grad = fused::transposed_product(logits, part, at::kFloat);
    }
  }
  out.loss = losses.mean();
  if (with_grads) {
    out.hidden = out.hidden.to(hidden.scalar_type());
    out.weight = head_grad.narrow(0, 0, vocabulary);
  }
  return out;
}

LossAndGrads compute_any(const at::Tensor& hidden, const at::Tensor& weight,
                         const at::Tensor& targets, std::int64_t rows, at::ScalarType type,
                         bool with_grads) {
  const bool fused = fused::takes(weight.device(), weight.scalar_type(), type);
  if (rows <= 0) {
    const std::int64_t most =
        std::max<std::int64_t>(1, (fused ? kFusedLogits : kLogits) / weight.size(0));
    const std::int64_t parts = (hidden.size(0) + most - 1) / most;
    rows = fused ? (hidden.size(0) + parts - 1) / parts : most;
  }
  return fused ? compute_fused(hidden, weight, targets, rows, type, with_grads)
               : compute(hidden, weight, targets, rows, type, with_grads);
}

class LinearCrossEntropy : public ::torch::autograd::Function<LinearCrossEntropy> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& hidden,
                            const at::Tensor& weight, const at::Tensor& targets, std::int64_t rows,
                            at::ScalarType type) {
    const LossAndGrads result = compute_any(hidden, weight, targets, rows, type, true);
    context->saved_data["hidden"] = result.hidden;
    context->saved_data["weight"] = result.weight.to(weight.scalar_type());
    return result.loss;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    if (at::GradMode::is_enabled()) {
      throw Error(ErrorKind::unsupported, "linear_cross_entropy",
                  "a second derivative was requested; only the first is implemented");
    }
    const auto scaled = [&](const char* name) {
      const at::Tensor grad = context->saved_data[name].toTensor();
      return grad * grads[0].to(grad.scalar_type());
    };
    return {scaled("hidden"), scaled("weight"), {}, {}, {}};
  }
};

}  // namespace

at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight,
                                const at::Tensor& targets, std::int64_t rows) {
  const at::Tensor flat = hidden.reshape({-1, hidden.size(-1)});
  const at::Tensor flat_targets = targets.reshape({-1});
  if (flat.size(0) != flat_targets.size(0) || flat.size(0) == 0) {
    throw Error(ErrorKind::shape, "linear_cross_entropy",
                std::to_string(flat_targets.size(0)) + " targets for " +
                    std::to_string(flat.size(0)) +
                    " positions; expected equal numbers, at least 1");
  }
  const at::DeviceType device = hidden.device().type();
  const AutocastState autocast = AutocastState::of(device);
  const AutocastScope off(device, {false, autocast.dtype});
  const at::ScalarType type = autocast.enabled ? autocast.dtype : hidden.scalar_type();
  if (!at::GradMode::is_enabled() || !(flat.requires_grad() || weight.requires_grad())) {
    return compute_any(flat, weight, flat_targets, rows, type, false).loss;
  }
  return LinearCrossEntropy::apply(flat, weight, flat_targets, rows, type);
}

}  // namespace rode::lab
