// SPDX-License-Identifier: Apache-2.0
// rode::Optimizer as Python sees it: numbers for addresses, text for types.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include <nanobind/nanobind.h>

#include "rode/optimizer.h"
#include "tensor_reader.h"

namespace rode::python {

// tensor, name, address, shape, dtype ("F32"), stored transposed. The address is another than the
// tensor's own where that is not contiguous: then the caller copies around each step.
using ParameterSpec = std::tuple<nanobind::object, std::string, std::uintptr_t,
                                 std::vector<std::int64_t>, std::string, bool>;
// optimizer, settings, route, parameters; beside the engine's routes there is "everything": the
// matrix rule for all of them, whatever their rank.
using GroupSpec = std::tuple<std::string, Settings, std::string, std::vector<ParameterSpec>>;

// parameter, key, shape, dtype
using StateRow = std::tuple<std::string, std::string, std::vector<std::int64_t>, std::string>;

// The state that a group's parameters would have; their tensors and addresses are not read.
std::vector<StateRow> planned_state(const GroupSpec& spec);

class Engine {
 public:
  // on_non_finite: "refuse" or "skip", of gradients.
  // state_memory(parameter, key, shape, dtype) -> (address, kept); notify(text).
  Engine(std::string_view device, std::uintptr_t stream, int threads,
         std::string_view on_non_finite, const std::vector<GroupSpec>& groups,
         const nanobind::object& exchange, const nanobind::object& float32,
         const nanobind::object& bfloat16, nanobind::callable state_memory,
         nanobind::callable notify);

  // Follows weights that moved. `groups` holds a list of tensors a group. False: they are other
  // tensors, or have another form than at the start.
  bool follow_values(const nanobind::list& groups);
  // Binds the gradient of every parameter. Returns the indices of those that are not plain;
  // the caller binds copies of them. The others are kept alive until release_grads: a step runs
  // without Python's lock, and another thread may drop them.
  std::vector<std::size_t> follow_grads();
  void release_grads() { grads_.clear(); }
  // Whether some parameter had none.
  bool lacks_grads() const { return lacks_grads_; }
  void bind_grad(std::size_t index, std::uintptr_t address, std::string_view dtype);

  void set_number(std::size_t group, std::string_view key, double value);
  void set_text(std::size_t group, std::string_view key, std::string_view value);
  void set_stream(std::uintptr_t stream);
  void step(double multiplier);
  void check();

  Optimizer& optimizer() { return *optimizer_; }
  const Optimizer& optimizer() const { return *optimizer_; }

 private:
  struct Slot {
    PyObject* tensor = nullptr;  // kept alive by the caller
    Shape shape;
    DType dtype = DType::f32;
    bool copied = false;
    DType grad_dtype = DType::f32;
    std::uintptr_t value = 0;
    std::uintptr_t grad = 0;
  };

  void bind_grad(std::size_t index, std::uintptr_t address, DType dtype);

  TensorReader reader_;
  nanobind::object grad_name_;
  std::int64_t device_ = 0;
  bool lacks_grads_ = false;
  std::vector<std::size_t> sizes_;  // parameters a group
  std::vector<Slot> slots_;
  std::vector<nanobind::object> grads_;
  std::unique_ptr<Optimizer> optimizer_;
};

}  // namespace rode::python
