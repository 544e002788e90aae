// SPDX-License-Identifier: Apache-2.0
// Products with the weights' copies, as autograd functions whose gradients go to the parameters.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/version.h>

#include "lab/models/fused/ops.h"
#include "lab/models/fused/tensors.h"

namespace rode::lab::fused {
namespace {

using ::torch::autograd::AutogradContext;
using ::torch::autograd::variable_list;

at::Tensor rows_of(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}); }

// A parameter's part of the gradient of a joined copy.
variable_list divided(const at::Tensor& joined, const std::vector<std::int64_t>& rows) {
  variable_list out;
  std::int64_t begin = 0;
  for (const std::int64_t count : rows) {
    out.push_back(joined.narrow(0, begin, count));
    begin += count;
  }
  return out;
}

std::vector<std::int64_t> rows_of(at::TensorList weights) {
  std::vector<std::int64_t> rows;
  for (const at::Tensor& weight : weights) rows.push_back(weight.size(0));
  return rows;
}

class Project : public ::torch::autograd::Function<Project> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, at::TensorList weights,
                            const at::Tensor& copy) {
    context->save_for_backward({x, copy});
    context->saved_data["rows"] = rows_of(weights);
    context->saved_data["type"] = weights[0].scalar_type();
    std::vector<std::int64_t> shape = x.sizes().vec();
    shape.back() = copy.size(0);
    return at::mm(rows_of(x), copy.t()).view(shape);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    first_derivative_only("project");
    const variable_list saved = context->get_saved_variables();
    const at::Tensor grad = rows_of(grads[0].contiguous());
    const at::Tensor dweight =
        transposed_product(grad, rows_of(saved[0]), context->saved_data["type"].toScalarType());
    variable_list out{at::mm(grad, saved[1]).view(saved[0].sizes())};
    for (at::Tensor& part : divided(dweight, context->saved_data["rows"].toIntVector())) {
      out.push_back(std::move(part));
    }
    out.emplace_back();  // the copy's
    return out;
  }
};

HeadGrads head_grads(at::Tensor& grad) {
  if (grad.stride(3) != 1) grad = grad.contiguous();
  return {grad.data_ptr(), grad.stride(0), grad.stride(1), grad.stride(2)};
}

class ProjectQkv : public ::torch::autograd::Function<ProjectQkv> {
 public:
  static variable_list forward(AutogradContext* context, const at::Tensor& x,
                               at::TensorList parameters, const at::Tensor& weight,
                               const at::Tensor& bias, const at::Tensor& cos, const at::Tensor& sin,
                               std::int64_t heads, std::int64_t kv_heads) {
    const std::int64_t batch = x.size(0), length = x.size(1), width = weight.size(0);
    const std::int64_t all = heads + 2 * kv_heads, size = width / all;
    // The outputs are parts of one tensor that is not an autograd view.
    const at::AutoDispatchBelowADInplaceOrView plain;
    const at::Tensor out = at::addmm(bias, rows_of(x), weight.t());
    rotary_forward({.data = data_of(out),
                    .cos = cos.data_ptr<float>(),
                    .sin = sin.data_ptr<float>(),
                    .rows = batch * length,
                    .length = length,
                    .stride = width,
                    .heads = heads + kv_heads,
                    .size = size,
                    .type = type_of(out)},
                   stream_of(out));
    context->save_for_backward({x, weight, cos, sin});
    context->saved_data["rows"] = rows_of(parameters.slice(0, 3));
    context->saved_data["type"] = parameters[0].scalar_type();
    context->saved_data["heads"] = heads;
    context->saved_data["kv_heads"] = kv_heads;
    const at::Tensor split = out.view({batch, length, all, size}).transpose(1, 2);
    return {split.narrow(1, 0, heads), split.narrow(1, heads, kv_heads),
            split.narrow(1, heads + kv_heads, kv_heads)};
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    first_derivative_only("project_qkv");
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1];
    const std::int64_t heads = context->saved_data["heads"].toInt();
    const std::int64_t kv_heads = context->saved_data["kv_heads"].toInt();
    at::Tensor dq = grads[0], dk = grads[1], dv = grads[2];
    const std::int64_t rows = dq.size(0) * dq.size(2);
    const at::Tensor grad = at::empty({rows, weight.size(0)}, weight.options());
    rotary_backward({.q = head_grads(dq),
                     .k = head_grads(dk),
                     .v = head_grads(dv),
                     .out = data_of(grad),
                     .cos = saved[2].data_ptr<float>(),
                     .sin = saved[3].data_ptr<float>(),
                     .rows = rows,
                     .length = dq.size(2),
                     .heads = heads,
                     .kv_heads = kv_heads,
                     .size = dq.size(3),
                     .type = type_of(grad)},
                    stream_of(grad));
    const at::ScalarType type = context->saved_data["type"].toScalarType();
    const std::vector<std::int64_t> parts = context->saved_data["rows"].toIntVector();
    variable_list out{at::mm(grad, weight).view(x.sizes())};
    for (const at::Tensor& whole : {transposed_product(grad, rows_of(x), type),
                                    at::sum(grad, {0}, false, at::kFloat).to(type)}) {
      for (at::Tensor& part : divided(whole, parts)) out.push_back(std::move(part));
    }
    out.resize(out.size() + 6);  // copies, angles and numbers have none
    return out;
  }
};

}  // namespace

at::Tensor transposed_product(const at::Tensor& a, const at::Tensor& b, at::ScalarType type) {
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 8
  if (a.is_cuda() && a.scalar_type() != type) return at::mm(a.t(), b, type);
#endif
  return at::mm(a.t(), b).to(type);
}

void add_transposed_product(at::Tensor& sum, const at::Tensor& a, const at::Tensor& b) {
  if (sum.scalar_type() == a.scalar_type()) {
    sum.addmm_(a.t(), b);
  } else {
    sum.add_(transposed_product(a, b, sum.scalar_type()));
  }
}

std::vector<at::Tensor> joined_copies(const std::vector<std::vector<at::Tensor>>& groups,
                                      at::ScalarType type) {
  const at::NoGradGuard no_grad;
  constexpr std::int64_t kAlign = 128;  // elements
  const auto is_there = [&](const std::vector<at::Tensor>& group) {
    return group.size() == 1 && group[0].scalar_type() == type && group[0].is_contiguous();
  };
  std::int64_t total = 0;
  for (const auto& group : groups) {
    if (is_there(group)) continue;
    for (const at::Tensor& tensor : group) total += tensor.numel();
    total = (total + kAlign - 1) / kAlign * kAlign;
  }
  const at::Tensor& first = groups.front().front();
  const at::Tensor buffer = at::empty({total}, first.options().dtype(type));
  std::vector<at::Tensor> out;
  std::vector<at::Tensor> dense;  // kept until the launch
  std::vector<CastItem> items;
  std::int64_t at = 0;
  for (const auto& group : groups) {
    if (is_there(group)) {
      out.push_back(group[0].detach());
      continue;
    }
    const std::int64_t begin = at;
    std::vector<std::int64_t> shape = group[0].sizes().vec();
    shape[0] = 0;
    for (const at::Tensor& tensor : group) {
      dense.push_back(tensor.contiguous());
      items.push_back({data_of(dense.back()),
                       static_cast<char*>(buffer.data_ptr()) + at * buffer.element_size(),
                       tensor.numel()});
      at += tensor.numel();
      shape[0] += tensor.size(0);
    }
    out.push_back(buffer.narrow(0, begin, at - begin).view(shape));
    at = (at + kAlign - 1) / kAlign * kAlign;
  }
  cast(items.data(), static_cast<std::int64_t>(items.size()), type_of(first), type_of(type),
       stream_of(first));
  return out;
}

at::Tensor padded_copy(const at::Tensor& weight, at::ScalarType type) {
  const at::NoGradGuard no_grad;
  const std::int64_t rows = weight.size(0), padded = (rows + 63) / 64 * 64;
  const at::Tensor dense = weight.contiguous();
  if (padded == rows && weight.scalar_type() == type) return dense.detach();
  const at::Tensor out = at::empty({padded, weight.size(1)}, weight.options().dtype(type));
  out.narrow(0, rows, padded - rows).zero_();
  const CastItem item{data_of(dense), data_of(out), dense.numel()};
  cast(&item, 1, type_of(dense), type_of(type), stream_of(out));
  return out;
}

at::Tensor project(const at::Tensor& x, const std::vector<at::Tensor>& weights,
                   const at::Tensor& copy) {
  return Project::apply(x, at::TensorList(weights), copy);
}

std::array<at::Tensor, 3> project_qkv(const at::Tensor& x,
                                      const std::vector<at::Tensor>& parameters,
                                      const at::Tensor& weight, const at::Tensor& bias,
                                      const RotaryShape& rotary) {
  const variable_list out =
      ProjectQkv::apply(x, at::TensorList(parameters), weight, bias, rotary.cos, rotary.sin,
                        rotary.heads, rotary.kv_heads);
  return {out[0], out[1], out[2]};
}

}  // namespace rode::lab::fused
