// SPDX-License-Identifier: Apache-2.0
// Hooks after autograd's accumulation, and buffers that are sent when they are full.
#include "lab/train/gradient_buckets.h"

#include <memory>
#include <utility>

#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/csrc/autograd/variable.h>

#include "rode/error.h"

namespace rode::lab {
struct GradientBuckets::Hook final : ::torch::autograd::PostAccumulateGradHook {
  Hook(GradientBuckets* of, std::size_t parameter) : buckets(of), index(parameter) {}

  void operator()(const at::Tensor& parameter) override {
    if (buckets->open_) buckets->put(index, parameter.grad());
  }

  GradientBuckets* buckets;
  std::size_t index;
};

GradientBuckets::GradientBuckets(std::vector<at::Tensor> parameters,
                                 rode::torch::ProcessGroup group, std::int64_t bucket_bytes)
    : parameters_(std::move(parameters)), group_(std::move(group)), places_(parameters_.size()) {
  const std::int64_t most = bucket_bytes / static_cast<std::int64_t>(sizeof(float));
  std::int64_t filled = 0;
  std::vector<std::int64_t> sizes;
  for (std::size_t i = parameters_.size(); i-- > 0;) {
    const std::int64_t own = parameters_[i].numel();
    if (buckets_.empty() || filled + own > most) {
      buckets_.emplace_back();
      sizes.push_back(0);
      filled = 0;
    }
    places_[i] = {buckets_.size() - 1, filled};
    ++buckets_.back().members;
    filled += own;
    sizes.back() = filled;
  }
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    buckets_[b].buffer =
        at::zeros({sizes[b]}, parameters_.front().options().dtype(at::kFloat).requires_grad(false));
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    ::torch::autograd::impl::set_post_acc_grad_hooks(parameters_[i],
                                                     std::make_unique<Hook>(this, i));
  }
  restart();
}

GradientBuckets::~GradientBuckets() {
  for (const at::Tensor& parameter : parameters_) {
    ::torch::autograd::impl::set_post_acc_grad_hooks(parameter, nullptr);
  }
}

at::Tensor GradientBuckets::slice(std::size_t parameter) const {
  const Place& place = places_[parameter];
  const at::Tensor& tensor = parameters_[parameter];
  return buckets_[place.bucket]
      .buffer.slice(0, place.first, place.first + tensor.numel())
      .view(tensor.sizes());
}

void GradientBuckets::restart() {
  there_.assign(parameters_.size(), false);
  for (Bucket& bucket : buckets_) bucket.waiting = bucket.members;
  sent_ = 0;
}

void GradientBuckets::begin() {
  restart();
  open_ = true;
}

void GradientBuckets::put(std::size_t parameter, const at::Tensor& gradient) {
  const ::torch::NoGradGuard no_grad;
  if (there_[parameter]) {
    throw Error(ErrorKind::unsupported, "train",
                "a gradient was accumulated twice in one backward pass, as happens when a model "
                "calls backward within backward; train it on one rank");
  }
  there_[parameter] = true;
  const at::Tensor own = slice(parameter);
  if (gradient.defined()) {
    own.copy_(gradient);
  } else {
    own.zero_();
  }
  --buckets_[places_[parameter].bucket].waiting;
  // One after the other, so that every rank sends them in the same order.
  while (sent_ < buckets_.size() && buckets_[sent_].waiting == 0) {
    group_->begin_add(buckets_[sent_++].buffer);
  }
}

void GradientBuckets::finish() {
  open_ = false;
  for (std::size_t i = parameters_.size(); i-- > 0;) {
    if (!there_[i]) put(i, parameters_[i].grad());
  }
  group_->finish();
  const ::torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].grad().defined()) parameters_[i].mutable_grad().copy_(slice(i));
  }
}

void GradientBuckets::sum(std::vector<at::Tensor>& gradients) {
  restart();
  for (std::size_t i = gradients.size(); i-- > 0;) put(i, gradients[i]);
  group_->finish();
  const ::torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (gradients[i].defined()) gradients[i].copy_(slice(i));
  }
}

}  // namespace rode::lab
