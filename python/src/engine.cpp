// SPDX-License-Identifier: Apache-2.0
// Turns addresses into views, and binds only what moved.
#include "engine.h"

#include <utility>

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "rode/error.h"

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
    const nb::object answer = memory(nb::str(parameter.data(), parameter.size()),
                                     nb::str(key.data(), key.size()), extents,
                                     nb::str(to_string(dtype).data(), to_string(dtype).size()));
    return StateMemory{pointer(nb::cast<std::uintptr_t>(answer[0])), nb::cast<bool>(answer[1])};
  };
}

ParameterGroup read_group(const GroupSpec& spec) {
  const auto& [name, settings, route, parameters] = spec;
  ParameterGroup group{{}, Method::by_name(name, settings), {}};
  if (route == "everything") {
    // A pattern must match something: without parameters there is none.
    if (!parameters.empty()) group.routing = {Route::rest, {{"*", Treatment::matrix}}};
  } else {
    group.routing.route = route_from_string(route);
  }
  for (const auto& [label, address, shape, dtype, transposed] : parameters) {
    Parameter& p = group.parameters.emplace_back();
    p.name = label;
    p.value = {pointer(address), Shape(shape), parse_dtype(dtype)};
    p.layout = transposed ? Layout::in_out : Layout::out_in;
  }
  return group;
}

}  // namespace

Engine::Engine(std::string_view device, std::uintptr_t stream, int threads,
               const std::vector<GroupSpec>& groups, nb::callable state_memory,
               nb::callable notify) {
  std::vector<ParameterGroup> given;
  for (const GroupSpec& spec : groups) {
    given.push_back(read_group(spec));
    for (const Parameter& p : given.back().parameters) {
      slots_.push_back({p.value.shape, p.value.dtype, p.value.dtype,
                        reinterpret_cast<std::uintptr_t>(p.value.data), 0});
    }
  }
  EngineOptions options;
  options.device = parse_device(device);
  options.stream = pointer(stream);
  options.threads = threads;
  options.on_missing = OnBadGradient::skip;  // as torch.optim does
  options.state_memory = allocator(std::move(state_memory));
  options.notify = [notify = std::move(notify)](std::string_view text) {
    const nb::gil_scoped_acquire held;
    notify(nb::str(text.data(), text.size()));
  };
  optimizer_.emplace(std::move(given), std::move(options));
}

void Engine::bind_grads(const nb::list& addresses) {
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    const auto address = nb::cast<std::uintptr_t>(addresses[i]);
    if (address == slot.grad) continue;
    optimizer_->bind_grad(i, {pointer(address), slot.shape, slot.grad_dtype});
    slot.grad = address;
  }
}

void Engine::bind_values(const nb::list& addresses) {
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    const auto address = nb::cast<std::uintptr_t>(addresses[i]);
    if (address == slot.value) continue;
    optimizer_->bind_value(i, {pointer(address), slot.shape, slot.dtype});
    slot.value = address;
  }
}

void Engine::set_grad_dtype(std::size_t index, std::string_view dtype) {
  Slot& slot = slots_.at(index);
  const DType wanted = parse_dtype(dtype);
  if (wanted == slot.grad_dtype) return;
  slot.grad_dtype = wanted;
  slot.grad = 0;  // the same address now means another array
  optimizer_->bind_grad(index, {nullptr, slot.shape, wanted});
}

void Engine::set_number(std::size_t group, std::string_view key, double value) {
  optimizer_->set_option(group, key, value);
}

void Engine::set_text(std::size_t group, std::string_view key, std::string_view value) {
  optimizer_->set_option(group, key, value);
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
