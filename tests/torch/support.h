// SPDX-License-Identifier: Apache-2.0
// Small problems for the LibTorch optimizers, and the engine to compare with.
#pragma once

#include <cmath>
#include <cstring>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "rode/rode.h"
#include "rode/torch.h"

namespace rode::torch {

namespace nn = ::torch::nn;
using at::Tensor;

// Every options struct of rode/optim/list.h, for typed tests.
template <class First, class... Rest>
testing::Types<Rest...> without_first(First, Rest...);
#define RODE_LIST_OPTIONS(Class, Options, name, summary) , rode::Options()
using Engines = decltype(without_first(0 RODE_FOR_EACH_OPTIMIZER(RODE_LIST_OPTIONS)));
#undef RODE_LIST_OPTIONS

// Numbers without a pattern, the same on every machine.
inline Tensor wave(at::IntArrayRef shape, int seed) {
  Tensor out = at::empty(shape);
  float* data = out.data_ptr<float>();
  for (std::int64_t i = 0; i < out.numel(); ++i) {
    data[i] = std::sin(static_cast<float>(37 * i * i + 13 * i + 101 * seed + 1));
  }
  return out;
}

inline std::vector<std::vector<std::int64_t>> shapes() { return {{24, 16}, {5, 12}, {7}}; }

inline std::vector<Tensor> make_parameters(at::ScalarType type = at::kFloat) {
  std::vector<Tensor> out;
  for (const auto& shape : shapes()) {
    out.push_back(wave(shape, static_cast<int>(out.size())).to(type).requires_grad_());
  }
  return out;
}

// The gradients of step t.
inline void set_grads(const std::vector<Tensor>& parameters, int t) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    parameters[i].mutable_grad() = wave(parameters[i].sizes(), 50 + 10 * t + static_cast<int>(i))
                                       .to(parameters[i].options().requires_grad(false));
  }
}

inline bool same_bits(const Tensor& a, const Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         std::memcmp(a.contiguous().data_ptr(), b.contiguous().data_ptr(), a.nbytes()) == 0;
}

inline std::vector<Tensor> copies(const std::vector<Tensor>& tensors) {
  std::vector<Tensor> out;
  for (const Tensor& t : tensors) out.push_back(t.detach().clone().requires_grad_());
  return out;
}

inline void expect_same(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(same_bits(a[i], b[i])) << "tensor " << i;
}

inline double distance(const Tensor& a, const Tensor& b) {
  return (a.detach().to(at::kDouble) - b.detach().to(at::kDouble)).norm().item<double>();
}

// The parameters as the engine expects them, under the adapter's names.
inline std::vector<Parameter> views(const std::vector<Tensor>& tensors) {
  std::vector<Parameter> out;
  for (const Tensor& t : tensors) {
    Parameter& p = out.emplace_back();
    p.name = "param." + std::to_string(out.size() - 1);
    const std::vector<std::int64_t> extents(t.sizes().begin(), t.sizes().end());
    const DType dtype = t.scalar_type() == at::kFloat ? DType::f32 : DType::bf16;
    p.value = {t.data_ptr(), Shape(std::span<const std::int64_t>(extents)), dtype};
    if (t.grad().defined()) p.grad = {t.grad().data_ptr(), p.value.shape, dtype};
  }
  return out;
}

inline void bind_grads(rode::Optimizer& engine, const std::vector<Tensor>& tensors) {
  const std::vector<Parameter> now = views(tensors);
  for (std::size_t i = 0; i < now.size(); ++i) engine.bind_grad(i, now[i].grad);
}

// The text of the rode::Error that `action` throws; empty: none.
inline std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

inline bool holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

inline std::string saved(const ::torch::optim::Optimizer& optimizer) {
  std::ostringstream out;
  ::torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  archive.save_to(out);
  return out.str();
}

// A language model as small as can be.
struct LanguageModel : nn::Module {
  LanguageModel() {
    tokens = register_module("tokens", nn::Embedding(10, 6));
    mix = register_module("mix", nn::Linear(6, 6));
    norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({6})));
    again = register_module("again", mix);  // the same layer, used twice
    head = register_module("head", nn::Linear(nn::LinearOptions(6, 10).bias(false)));
    gate = register_parameter("gate", at::ones({6, 6}));
    int seed = 0;
    const at::NoGradGuard guard;
    for (Tensor& p : parameters()) p.copy_(wave(p.sizes(), ++seed));
  }
  Tensor forward(const Tensor& text) {
    const Tensor x = norm(at::relu(mix(tokens(text))));
    return head(again(at::matmul(x, gate)));
  }
  Tensor loss(int t) {
    const Tensor text = (at::arange(8, at::kLong) * (t + 3)) % 10;
    return nn::functional::cross_entropy(forward(text), (text + 1) % 10);
  }

  nn::Embedding tokens{nullptr};
  nn::Linear mix{nullptr}, again{nullptr}, head{nullptr};
  nn::LayerNorm norm{nullptr};
  Tensor gate;
};

inline void train(LanguageModel& model, ::torch::optim::Optimizer& optimizer, int from, int to) {
  for (int t = from; t < to; ++t) {
    optimizer.zero_grad();
    model.loss(t).backward();
    optimizer.step();
  }
}

}  // namespace rode::torch
