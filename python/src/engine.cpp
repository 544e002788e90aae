// SPDX-License-Identifier: Apache-2.0
// Turns addresses into views, and keeps them bound.
#include "engine.h"

#include <optional>
#include <span>
#include <utility>

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "rode/error.h"
#include "rode/matrix_parts.h"
#include "rode/shard_plan.h"
#include "rode/stored_state.h"

namespace nb = nanobind;

namespace rode::python {
namespace {

// Addresses come as Python's whole numbers and are used as they are.
void* pointer(std::uintptr_t address) {
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
}

DType parse_dtype(std::string_view text) {
  const std::optional<DType> dtype = dtype_from_string(text);
  if (dtype) return *dtype;
  throw Error(ErrorKind::dtype, "parameters", "unknown element type '" + std::string(text) + "'");
}

Device parse_device(std::string_view text) {
  if (text == "cpu") return Device::cpu;
  if (text == "cuda") return Device::cuda;
  throw Error(ErrorKind::unsupported, "engine",
              "device '" + std::string(text) + "'; expected cpu or cuda");
}

StateAllocator allocator(nb::callable memory) {
  return [memory = std::move(memory)](std::string_view parameter, std::string_view key,
                                      const Shape& shape, DType dtype) {
    nb::list extents;
    for (const std::int64_t extent : shape.dims()) extents.append(extent);
    const nb::object answer =
        memory(nb::str(parameter.data(), parameter.size()), nb::str(key.data(), key.size()),
               extents, nb::str(to_string(dtype).data(), to_string(dtype).size()));
    return StateMemory{pointer(nb::cast<std::uintptr_t>(answer[0])), nb::cast<bool>(answer[1])};
  };
}

GroupRule parse_rule(std::string_view text) {
  if (text == "auto") return GroupRule::automatic;
  if (text == "matrix") return GroupRule::matrix;
  if (text == "rest") return GroupRule::rest;
  throw Error(ErrorKind::invalid_argument, "groups",
              "rule = '" + std::string(text) + "'; expected auto, matrix or rest");
}

TensorView read_tensor(const TensorSpec& spec) {
  const auto& [address, dtype, shape] = spec;
  return {pointer(address), Shape(shape), parse_dtype(dtype)};
}

RateCoupling read_coupling(const CouplingSpec& spec) {
  return {.from = std::get<0>(spec), .lr_rho = std::get<1>(spec)};
}

ParameterGroup read_group(const GroupSpec& spec) {
  const auto& [name, settings, route, coupling, parameters] = spec;
  ParameterGroup group{
      {}, Method::by_name(name, settings), {route_from_string(route), {}}, read_coupling(coupling)};
  for (const ParameterSpec& given : parameters) {
    Parameter& p = group.parameters.emplace_back();
    p.name = nb::cast<std::string>(given[1]);
    p.value = {pointer(nb::cast<std::uintptr_t>(given[2])),
               Shape(nb::cast<std::vector<std::int64_t>>(given[3])),
               parse_dtype(nb::cast<std::string>(given[4]))};
    const auto layout = nb::cast<std::string>(given[5]);
    p.layout = layout.ends_with("in_out") ? Layout::in_out : Layout::out_in;
    // A part of one that is stepped element by element has one dimension.
    if (layout.starts_with("experts_") && p.value.shape.rank() > 1) p.experts = true;
    if (given.size() > 6 && !given[6].is_none()) p.zero_start = nb::cast<bool>(given[6]);
    if (given.size() > 7) p.first_element = nb::cast<std::int64_t>(given[7]);
  }
  return group;
}

}  // namespace

std::string_view group_route(std::string_view optimizer, std::string_view rule,
                             std::string_view route) {
  return to_string(
      group_route(parse_rule(rule), route_from_string(route), Method::by_name(optimizer)));
}

std::vector<StateRow> planned_state(const GroupSpec& spec) {
  const ParameterGroup group = read_group(spec);
  std::vector<StateRow> rows;
  for (const PlannedState& s : planned_state(group.parameters, group.method, group.routing)) {
    const auto dims = s.shape.dims();
    rows.emplace_back(s.parameter, s.key, std::vector<std::int64_t>(dims.begin(), dims.end()),
                      std::string(to_string(s.dtype)));
  }
  return rows;
}

void convert_state(std::string_view name, const TensorSpec& from, const TensorSpec& from_scales,
                   const TensorSpec& to, const TensorSpec& to_scales) {
  rode::convert_state(name, {read_tensor(from), read_tensor(from_scales)},
                      {read_tensor(to), read_tensor(to_scales)});
}

std::vector<GradientRow> planned_gradients(const GroupSpec& spec) {
  const ParameterGroup group = read_group(spec);
  std::vector<GradientRow> rows;
  for (const PlannedGradient& g :
       planned_gradients(group.parameters, group.method, group.routing)) {
    rows.emplace_back(g.parameter, g.elementwise, g.most_gg, g.experts);
  }
  return rows;
}

std::vector<ItemRow> shard_items(const GroupSpec& spec) {
  const ParameterGroup group = read_group(spec);
  std::vector<ItemRow> rows;
  for (const ShardItem& i : shard_items(group.parameters, group.method, group.routing)) {
    rows.emplace_back(i.name, i.bytes, i.unit_bytes, i.cost, i.state_bytes);
  }
  return rows;
}

namespace {

std::vector<PartInput> read_inputs(const std::vector<PartInputRow>& rows) {
  std::vector<PartInput> out;
  for (const auto& [s, scalars] : rows) {
    out.push_back({{s[0], s[1], s[2], s[3], s[4], s[5]}, scalars});
  }
  return out;
}

}  // namespace

std::vector<PartedRow> parted_matrices(const GroupSpec& spec, std::string_view device) {
  std::vector<PartedRow> rows;
  for (PartedMatrix& m : rode::parted_matrices(read_group(spec), parse_device(device))) {
    rows.emplace_back(m.parameter, m.rows, m.columns, m.previous, m.conditioner, m.settings,
                      m.weight);
  }
  return rows;
}

std::vector<PartFormRow> form_parts(const GroupSpec& spec,
                                    const std::vector<PartInputRow>& inputs) {
  std::vector<PartFormRow> rows;
  for (const PartForm& f : rode::form_parts(read_group(spec), read_inputs(inputs))) {
    rows.emplace_back(f.good_weight, f.direction, std::array{f.buffer_b, f.buffer_g, f.buffer_t},
                      std::array{f.start_b, f.start_g, f.start_t}, f.scalars);
  }
  return rows;
}

std::vector<PartWriteRow> write_parts(const GroupSpec& spec,
                                      const std::vector<PartInputRow>& inputs,
                                      const std::vector<std::array<double, 4>>& directions) {
  std::vector<DirectionSums> sums;
  for (const auto& d : directions) sums.push_back({d[0], d[1], d[2], d[3]});
  std::vector<PartWriteRow> rows;
  for (const PartWrite& w : rode::write_parts(read_group(spec), read_inputs(inputs), sums)) {
    const MatrixDiagnostics& d = w.diagnostics;
    rows.emplace_back(w.finite, w.w, w.y,
                      std::array{d.rho, d.rho_next, d.s, d.q, d.theta, d.gamma, d.m_norm});
  }
  return rows;
}

// A walk instead of lookups: the hash of a tensor is a call into Python.
bool holds(const nb::dict& dict, const nb::list& items) {
  const Py_ssize_t count = PyList_GET_SIZE(items.ptr());
  Py_ssize_t at = 0, position = 0;
  PyObject *key = nullptr, *value = nullptr;
  while (at < count && PyDict_Next(dict.ptr(), &position, &key, &value) != 0) {
    PyObject* item = PyList_GET_ITEM(items.ptr(), at);
    if (key != PyTuple_GET_ITEM(item, 0)) continue;
    if (value != PyTuple_GET_ITEM(item, 1)) return false;
    ++at;
  }
  return at == count;
}

bool same(const nb::list& entries) {
  for (const nb::handle entry : entries) {
    PyObject* row = entry.ptr();
    PyObject* found = PyDict_GetItemWithError(PyTuple_GET_ITEM(row, 0), PyTuple_GET_ITEM(row, 1));
    if (found != PyTuple_GET_ITEM(row, 2)) return false;
  }
  return true;
}

Engine::Engine(std::string_view device, std::uintptr_t stream, int threads,
               std::string_view on_non_finite, bool share, const std::vector<GroupSpec>& groups,
               const nb::object& exchange, const nb::object& float32, const nb::object& bfloat16,
               nb::callable state_memory, nb::callable notify)
    : reader_(exchange, float32, bfloat16), grad_name_(nb::str("grad")) {
  std::vector<ParameterGroup> given;
  for (const GroupSpec& spec : groups) {
    const ParameterGroup& group = given.emplace_back(read_group(spec));
    sizes_.push_back(group.parameters.size());
    for (std::size_t i = 0; i < group.parameters.size(); ++i) {
      const TensorView& value = group.parameters[i].value;
      const nb::object tensor = std::get<4>(spec)[i][0];
      const TensorInfo info = reader_.read(tensor, value.shape);
      if (info.plain) device_ = info.device;
      followed_.push_back({tensor.ptr(), !info.plain});
    }
  }
  EngineOptions options;
  options.device = parse_device(device);
  options.stream = pointer(stream);
  options.threads = threads;
  options.on_non_finite = on_non_finite == "skip" ? OnBadGradient::skip : OnBadGradient::refuse;
  options.share = share;
  options.on_missing = OnBadGradient::skip;  // as torch.optim does
  options.state_memory = allocator(std::move(state_memory));
  options.notify = [notify = std::move(notify)](std::string_view text) {
    const nb::gil_scoped_acquire held;
    notify(nb::str(text.data(), text.size()));
  };
  optimizer_ = std::make_unique<Optimizer>(std::move(given), std::move(options));
}

bool Engine::follow_values(const nb::list& groups) {
  if (groups.size() != sizes_.size()) return false;
  const std::span<const Parameter> parameters = optimizer_->parameters();
  std::size_t index = 0;
  for (std::size_t g = 0; g < sizes_.size(); ++g) {
    const nb::object group = groups[g];
    if (!PyList_CheckExact(group.ptr()) || nb::len(group) != sizes_[g]) return false;
    for (const nb::handle tensor : nb::borrow<nb::list>(group)) {
      const FollowedObject& followed = followed_[index];
      if (tensor.ptr() != followed.tensor) return false;
      const TensorView& bound = parameters[index].value;
      const TensorInfo info = reader_.read(tensor, bound.shape);
      if (info.plain == followed.copied) return false;
      if (!followed.copied) {
        if (info.dtype != bound.dtype || info.device != device_) return false;
        // It may have moved to another device, which is not known then.
        if (!reader_.reads_device() && pointer(info.address) != bound.data) return false;
        optimizer_->bind_value(index, pointer(info.address), bound.dtype);
      }
      ++index;
    }
  }
  return true;
}

std::vector<std::size_t> Engine::follow_grads() {
  const std::span<const Parameter> parameters = optimizer_->parameters();
  std::vector<std::size_t> others;
  lacks_grads_ = false;
  grads_.clear();
  for (std::size_t i = 0; i < followed_.size(); ++i) {
    nb::object grad = nb::steal(PyObject_GetAttr(followed_[i].tensor, grad_name_.ptr()));
    if (!grad.is_valid()) throw nb::python_error();
    if (grad.is_none()) {
      lacks_grads_ = true;
      optimizer_->bind_grad(i, nullptr, DType::f32);
      continue;
    }
    const TensorInfo info = reader_.read(grad, parameters[i].value.shape);
    if (info.plain && info.device == device_) {
      optimizer_->bind_grad(i, pointer(info.address), info.dtype);
      grads_.push_back(std::move(grad));
    } else {
      others.push_back(i);
    }
  }
  return others;
}

void Engine::bind_grad(std::size_t index, std::uintptr_t address, std::string_view dtype) {
  optimizer_->bind_grad(index, pointer(address), parse_dtype(dtype));
}

void Engine::set_number(std::size_t group, std::string_view key, double value) {
  optimizer_->set_option(group, key, value);
}

bool Engine::set_options(std::size_t group, std::string_view name, const Settings& settings) {
  return optimizer_->set_method(group, Method::by_name(name, settings));
}

void Engine::set_coupling(std::size_t group, const CouplingSpec& coupling) {
  optimizer_->set_coupling(group, read_coupling(coupling));
}

void Engine::set_stream(std::uintptr_t stream) { optimizer_->set_stream(pointer(stream)); }

void Engine::step(double multiplier) {
  const nb::gil_scoped_release free;
  optimizer_->step(multiplier);
}

void Engine::check() {
  const nb::gil_scoped_release free;
  optimizer_->check();
}

}  // namespace rode::python
