// SPDX-License-Identifier: Apache-2.0
// The constructors that make_model calls, one file each, and what they draw initial weights from.
#pragma once

#include <cstdint>
#include <memory>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include "lab/models/model.h"

namespace rode::lab {

// Has a generator of its own.
class WeightSource {
 public:
  explicit WeightSource(std::uint64_t seed);

  void normal(const at::Tensor& weight, double deviation);
  void uniform(const at::Tensor& weight, double bound);  // in [-bound, bound)
  static void constant(const at::Tensor& weight, double value);

 private:
  at::Generator generator_;
};

std::unique_ptr<Model> make_gpt2(const ModelSpec& config, WeightSource& draw);
std::unique_ptr<Model> make_qwen2(const ModelSpec& config, WeightSource& draw);
// resnet50 and small-resnet.
std::unique_ptr<Model> make_resnet(const ModelSpec& config, WeightSource& draw);

}  // namespace rode::lab
