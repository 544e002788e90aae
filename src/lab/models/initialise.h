// SPDX-License-Identifier: Apache-2.0
// Draws initial weights from a generator of its own.
#pragma once

#include <cstdint>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

namespace rode::lab {

class WeightSource {
 public:
  explicit WeightSource(std::uint64_t seed);

  void normal(const at::Tensor& weight, double deviation);
  void uniform(const at::Tensor& weight, double bound);  // in [-bound, bound)
  static void constant(const at::Tensor& weight, double value);

 private:
  at::Generator generator_;
};

}  // namespace rode::lab
