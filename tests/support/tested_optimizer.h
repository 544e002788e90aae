// SPDX-License-Identifier: Apache-2.0
// An optimizer on the tested backend that is fed from host memory.
//
// Tests write weights and gradients as host arrays, whatever the backend. Each array has a guarded
// twin in the backend's memory; a step uploads what the test has changed, steps, checks, inspects
// the guard bands and copies the weights back, even if it throws.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "rode/optimizer.h"
#include "support/backend_under_test.h"
#include "support/device_memory.h"

namespace rode::test {

// The twins; a base class, so that they exist before the optimizer that uses them.
class Twins {
 protected:
  TensorView twin(const TensorView& host);
  ConstTensorView twin(const ConstTensorView& host);
  std::vector<Parameter> twins(std::vector<Parameter> parameters);
  std::vector<ParameterGroup> twins(std::vector<ParameterGroup> groups);

  void upload();
  void download();

  struct Bound {
    TensorView value;
    ConstTensorView grad;
  };
  std::vector<Bound> bound_;  // host arrays, in the order of the parameters

 private:
  GuardedArray* array_of(const void* host, std::size_t bytes);

  // By host address: tied weights have one twin. Retired twins stay, because pointers to them may.
  std::map<const void*, std::unique_ptr<GuardedArray>> arrays_;
  std::vector<std::unique_ptr<GuardedArray>> retired_;
};

class Optimizer : private Twins, public rode::Optimizer {
 private:
  // Uploads, does it, checks and downloads.
  void around(const std::function<void()>& act);

 public:
  Optimizer(std::vector<Parameter> parameters, Method method, Routing routing = {},
            EngineOptions engine = {});
  explicit Optimizer(std::vector<ParameterGroup> groups, EngineOptions engine = {});

  // step() and check(): what a caller on the CPU gets from one step.
  void step(double multiplier = 1.0);
  // The same in phases; `between` is called after `prepare`.
  void step_in_phases(double multiplier = 1.0, const std::function<void()>& between = {});
  void bind_grad(std::size_t index, ConstTensorView grad);
  void bind_value(std::size_t index, TensorView value);
};

// On CUDA the method with fp32 products if it does not set their type; elsewhere unchanged.
Method in_fp32(const Method& method);

}  // namespace rode::test
