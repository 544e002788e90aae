// SPDX-License-Identifier: Apache-2.0
// Small models and inputs for the tests of the lab's models.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "lab/models/model.h"
#include "lab/support.h"

namespace rode::lab {

inline ModelSpec tiny(const std::string& kind, double dropout = 0) {
  ModelSpec config;
  config.kind = kind;
  config.layers = 3;
  config.width = 16;
  config.heads = 4;
  config.kv_heads = kind == "gpt2" ? 4 : 2;
  config.mlp_width = 24;
  config.vocab_size = 37;
  config.positions = kind == "gpt2" ? 12 : 0;
  config.init_deviation = 0.3;  // large enough for every part to matter
  config.dropout = dropout;
  config.classes = 5;
  return config;
}

struct Example {
  at::Tensor input, target;
};

// Numbers without a pattern, the same on every machine.
inline at::Tensor whole_wave(at::IntArrayRef shape, std::int64_t below, std::int64_t seed) {
  at::Tensor out = at::empty(shape, at::kLong);
  auto* data = out.data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < out.numel(); ++i) data[i] = (37 * i * i + 13 * i + seed) % below;
  return out;
}

inline Example example(const ModelSpec& config) {
  if (config.vocab_size > 0 && (config.kind == "gpt2" || config.kind == "qwen2")) {
    return {whole_wave({2, 9}, config.vocab_size, 1), whole_wave({2, 9}, config.vocab_size, 5)};
  }
  return {at::sin(at::arange(4 * 3 * 8 * 8, at::kFloat) * 1.7).view({4, 3, 8, 8}),
          whole_wave({4}, config.classes, 2)};
}

// Loss and gradients in the order of named_parameters.
inline std::vector<at::Tensor> gradients(Model& model, const Example& data) {
  model.module().zero_grad();
  const at::Tensor loss = model.loss(data.input, data.target);
  loss.backward();
  std::vector<at::Tensor> out{loss.detach()};
  for (const at::Tensor& parameter : model.module().parameters()) {
    out.push_back(parameter.grad().clone());
  }
  return out;
}

inline void expect_equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(at::equal(a[i], b[i])) << "tensor " << i;
}

}  // namespace rode::lab
