// SPDX-License-Identifier: Apache-2.0
// Norm and gate as autograd functions over the kernels.
#include "lab/models/fused/ops.h"

#include <optional>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "lab/models/fused/tensors.h"

namespace rode::lab::fused {
namespace {

using ::torch::autograd::AutogradContext;
using ::torch::autograd::variable_list;

class AddRmsNorm : public ::torch::autograd::Function<AddRmsNorm> {
 public:
  static variable_list forward(AutogradContext* context, const at::Tensor& x,
                               const std::optional<at::Tensor>& addend, const at::Tensor& weight,
                               double eps, at::ScalarType branch) {
    const at::Tensor delta = addend.value_or(at::Tensor());
    const std::int64_t width = x.size(-1), rows = x.numel() / width;
    // Without a delta the sum is the input: autograd makes a view of it that has this function as
    // its origin, so that the gradients of both outputs still arrive here.
    const at::Tensor sum = delta.defined() ? at::empty_like(x) : x;
    const at::Tensor norm = at::empty(x.sizes(), x.options().dtype(branch));
    const at::Tensor scale = at::empty({rows}, x.options().dtype(at::kFloat));
    rms_norm_forward({.x = data_of(x),
                      .delta = data_of(delta),
                      .weight = data_of(weight),
                      .sum = delta.defined() ? data_of(sum) : nullptr,
                      .y = data_of(norm),
                      .scale = scale.data_ptr<float>(),
                      .rows = rows,
                      .width = width,
                      .eps = static_cast<float>(eps),
                      .stream = type_of(x),
                      .branch = type_of(branch)},
                     stream_of(x));
    context->set_materialize_grads(false);
    context->save_for_backward({sum, weight, scale});
    context->saved_data["added"] = delta.defined();
    return {sum, norm};
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    first_derivative_only("add_rms_norm");
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &sum = saved[0], &weight = saved[1];
    const bool added = context->saved_data["added"].toBool();
    const at::Tensor dsum = grads[0].defined() ? grads[0].contiguous() : at::Tensor();
    if (!grads[1].defined()) return {dsum, added ? dsum : at::Tensor(), {}, {}, {}};
    const at::Tensor dnorm = grads[1].contiguous();
    const std::int64_t width = sum.size(-1), rows = sum.numel() / width;
    const at::Tensor dx = at::empty_like(sum);
    const bool two_types = added && dnorm.scalar_type() != sum.scalar_type();
    const at::Tensor ddelta = two_types ? at::empty_like(dnorm) : at::Tensor();
    const at::Tensor partial =
        at::empty({rms_norm_partials(rows), width}, sum.options().dtype(at::kFloat));
    const at::Tensor dweight = rows == 0 ? at::zeros_like(weight) : at::empty_like(weight);
    rms_norm_backward({.dy = data_of(dnorm),
                       .dsum = data_of(dsum),
                       .sum = data_of(sum),
                       .weight = data_of(weight),
                       .scale = saved[2].data_ptr<float>(),
                       .dx = data_of(dx),
                       .ddelta = data_of(ddelta),
                       .partial = partial.data_ptr<float>(),
                       .dweight = data_of(dweight),
                       .rows = rows,
                       .width = width,
                       .stream = type_of(sum),
                       .branch = type_of(dnorm)},
                      stream_of(sum));
    at::Tensor to_delta;
    if (added) to_delta = two_types ? ddelta : dx;
    return {dx, to_delta, dweight, {}, {}};
  }
};

class Swiglu : public ::torch::autograd::Function<Swiglu> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x) {
    const std::int64_t stride = x.size(-1), width = stride / 2;
    std::vector<std::int64_t> shape = x.sizes().vec();
    shape.back() = width;
    const at::Tensor out = at::empty(shape, x.options());
    const at::Tensor up = x.narrow(-1, width, width);
    swiglu_forward({.gate = data_of(x),
                    .up = data_of(up),
                    .out = data_of(out),
                    .rows = x.numel() / stride,
                    .width = width,
                    .stride = stride,
                    .type = type_of(x)},
                   stream_of(x));
    context->save_for_backward({x});
    return out;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    first_derivative_only("swiglu");
    const at::Tensor x = context->get_saved_variables()[0];
    const at::Tensor grad = grads[0].contiguous();
    const std::int64_t stride = x.size(-1), width = stride / 2;
    const at::Tensor dx = at::empty_like(x);
    const at::Tensor up = x.narrow(-1, width, width), dup = dx.narrow(-1, width, width);
    swiglu_backward({.gate = data_of(x),
                     .up = data_of(up),
                     .dout = data_of(grad),
                     .dgate = data_of(dx),
                     .dup = data_of(dup),
                     .rows = x.numel() / stride,
                     .width = width,
                     .stride = stride,
                     .type = type_of(x)},
                    stream_of(x));
    return {dx};
  }
};

}  // namespace

bool takes(at::Device device, at::ScalarType stream, at::ScalarType branch) {
  const bool here = (device.is_cuda() && has_kernels(Device::cuda)) ||
                    (device.is_cpu() && has_kernels(Device::cpu));
  const bool types = (stream == at::kFloat && (branch == at::kFloat || branch == at::kBFloat16)) ||
                     (stream == at::kBFloat16 && branch == at::kBFloat16);
  return here && types;
}

Normed add_rms_norm(const at::Tensor& x, const at::Tensor& delta, const at::Tensor& weight,
                    double eps, at::ScalarType branch) {
  std::optional<at::Tensor> addend;
  if (delta.defined()) addend = delta.to(branch).contiguous();
  const variable_list out = AddRmsNorm::apply(x.contiguous(), addend, weight, eps, branch);
  return {out[0], out[1]};
}

at::Tensor swiglu(const at::Tensor& x) { return Swiglu::apply(x.contiguous()); }

}  // namespace rode::lab::fused
