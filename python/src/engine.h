// SPDX-License-Identifier: Apache-2.0
// rode::Optimizer as Python sees it: numbers for addresses, text for types.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include <nanobind/nanobind.h>

#include "rode/optimizer.h"

namespace rode::python {

// name, address, shape, dtype ("F32"), stored transposed
using ParameterSpec =
    std::tuple<std::string, std::uintptr_t, std::vector<std::int64_t>, std::string, bool>;
// optimizer, settings, route, parameters; beside the engine's routes there is "everything": the
// matrix rule for all of them, whatever their rank.
using GroupSpec = std::tuple<std::string, Settings, std::string, std::vector<ParameterSpec>>;

class Engine {
 public:
  // state_memory(parameter, key, shape, dtype) -> (address, kept); notify(text).
  Engine(std::string_view device, std::uintptr_t stream, int threads,
         const std::vector<GroupSpec>& groups, nanobind::callable state_memory,
         nanobind::callable notify);

  // One address a parameter, 0: none. Only those that changed are bound.
  void bind_grads(const nanobind::list& addresses);
  void bind_values(const nanobind::list& addresses);
  // Of the gradient bound next; until told, the parameter's.
  void set_grad_dtype(std::size_t index, std::string_view dtype);

  void set_number(std::size_t group, std::string_view key, double value);
  void set_text(std::size_t group, std::string_view key, std::string_view value);
  void set_stream(std::uintptr_t stream);
  void step(double multiplier);
  void check();

  Optimizer& optimizer() { return *optimizer_; }
  const Optimizer& optimizer() const { return *optimizer_; }

 private:
  struct Slot {
    Shape shape;
    DType dtype = DType::f32;
    DType grad_dtype = DType::f32;
    std::uintptr_t value = 0;
    std::uintptr_t grad = 0;
  };

  std::vector<Slot> slots_;
  std::optional<Optimizer> optimizer_;
};

}  // namespace rode::python
