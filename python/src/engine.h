// SPDX-License-Identifier: Apache-2.0
// rode::Optimizer as Python sees it: numbers for addresses, text for types.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include <nanobind/nanobind.h>

#include "rode/optimizer.h"
#include "tensor_reader.h"

namespace rode::python {

// tensor, name, address, shape, dtype ("F32"), layout ("out_in", "experts_in_out"); where it is
// known, whether it began at zero; of a part, its first element in the whole. The address is
// another than the tensor's own where that is not contiguous: then the caller copies around each
// step.
using ParameterSpec = nanobind::tuple;
// from, lr_rho: rode::RateCoupling
using CouplingSpec = std::tuple<std::optional<double>, bool>;
// optimizer, settings, route, coupling, parameters
using GroupSpec =
    std::tuple<std::string, Settings, std::string, CouplingSpec, std::vector<ParameterSpec>>;

// Whether a dict still holds these items, (key, object) each, in their order and with any others
// between.
bool holds(const nanobind::dict& dict, const nanobind::list& items);
// Whether every dict still holds the object under the key: (dict, key, object) each.
bool same(const nanobind::list& entries);

// The route of a group, by name; `rule`: "auto", "matrix" or "rest".
std::string_view group_route(std::string_view optimizer, std::string_view rule,
                             std::string_view route);

// parameter, key, shape, dtype
using StateRow = std::tuple<std::string, std::string, std::vector<std::int64_t>, std::string>;

// The state that a group's parameters would have; their tensors and addresses are not read.
std::vector<StateRow> planned_state(const GroupSpec& spec);

// address, dtype, shape; the address 0: absent
using TensorSpec = std::tuple<std::uintptr_t, std::string, std::vector<std::int64_t>>;

// rode::convert_state on tensors in host memory: values and scales of both storages.
void convert_state(std::string_view name, const TensorSpec& from, const TensorSpec& from_scales,
                   const TensorSpec& to, const TensorSpec& to_scales);

// parameter, elementwise, most_gg, experts: rode::PlannedGradient
using GradientRow = std::tuple<std::string, bool, double, std::int64_t>;

// The same of what a step would ask of their gradients.
std::vector<GradientRow> planned_gradients(const GroupSpec& spec);

// name, bytes, unit_bytes, cost, state_bytes: rode::ShardItem
using ItemRow = std::tuple<std::string, std::int64_t, std::int64_t, double, std::int64_t>;

// The same of what several processes would deal out.
std::vector<ItemRow> shard_items(const GroupSpec& spec);

// parameter, rows, columns, previous, conditioner, settings, weight: rode::PartedMatrix
using PartedRow =
    std::tuple<std::string, std::int64_t, std::int64_t, bool, std::string, Settings, bool>;
// tt, bt, gt, bb, bg, gg; scalar state: rode::PartInput
using PartInputRow = std::tuple<std::array<double, 6>, std::map<std::string, double>>;
// good_weight, direction, buffer (b, g, t), start (b, g, t), scalar state: rode::PartForm
using PartFormRow = std::tuple<bool, bool, std::array<double, 3>, std::array<double, 3>,
                               std::map<std::string, double>>;
// finite, w, y; rho, rho_next, s, q, theta, gamma, m_norm: rode::PartWrite
using PartWriteRow = std::tuple<bool, double, double, std::array<double, 7>>;

// The functions of rode/matrix_parts.h; a direction is factor, yw, yy, ww.
std::vector<PartedRow> parted_matrices(const GroupSpec& spec, std::string_view device);
std::vector<PartFormRow> form_parts(const GroupSpec& spec, const std::vector<PartInputRow>& inputs);
std::vector<PartWriteRow> write_parts(const GroupSpec& spec,
                                      const std::vector<PartInputRow>& inputs,
                                      const std::vector<std::array<double, 4>>& directions);

class Engine {
 public:
  // on_non_finite: "refuse" or "skip", of gradients; share: EngineOptions::share.
  // state_memory(parameter, key, shape, dtype) -> (address, kept); notify(text).
  Engine(std::string_view device, std::uintptr_t stream, int threads,
         std::string_view on_non_finite, bool share, const std::vector<GroupSpec>& groups,
         const nanobind::object& exchange, const nanobind::object& float32,
         const nanobind::object& bfloat16, nanobind::callable state_memory,
         nanobind::callable notify);

  // Binds the weights as they lie now. `groups` holds one list of tensors per group. False: they
  // are other tensors, or have another form than at the start.
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
  // False, and nothing changed: an option that is fixed at construction differs.
  bool set_options(std::size_t group, std::string_view name, const Settings& settings);
  void set_coupling(std::size_t group, const CouplingSpec& coupling);
  void set_stream(std::uintptr_t stream);
  void step(double multiplier);
  void check();

  Optimizer& optimizer() { return *optimizer_; }
  const Optimizer& optimizer() const { return *optimizer_; }

 private:
  // What only Python knows of a parameter; the rest is optimizer().parameters()[index].
  struct FollowedObject {
    PyObject* tensor = nullptr;  // kept alive by the caller
    bool copied = false;         // not plain: the engine steps a copy
  };

  TensorReader reader_;
  nanobind::object grad_name_;
  std::int64_t device_ = 0;
  bool lacks_grads_ = false;
  std::vector<std::size_t> sizes_;  // parameters per group
  std::vector<FollowedObject> followed_;
  std::vector<nanobind::object> grads_;
  std::unique_ptr<Optimizer> optimizer_;
};

}  // namespace rode::python
