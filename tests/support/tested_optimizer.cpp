// SPDX-License-Identifier: Apache-2.0
// Keeps host arrays and their twins in the backend's memory equal around every step.
#include "support/tested_optimizer.h"

#include <set>
#include <utility>

namespace rode::test {
namespace {

EngineOptions on_tested_device(EngineOptions engine) {
  engine.device = tested_device();
  return engine;
}

}  // namespace

GuardedArray* Twins::array_of(const void* host, std::size_t bytes) {
  std::unique_ptr<GuardedArray>& found = arrays_[host];
  // A different size at a known address: new memory that took its place.
  if (found != nullptr && found->bytes() != bytes) retired_.push_back(std::move(found));
  if (found == nullptr) {
    found = std::make_unique<GuardedArray>(host, bytes, Misaligned::bytes());
  }
  return found.get();
}

TensorView Twins::twin(const TensorView& host) {
  if (host.data == nullptr) return host;
  return {array_of(host.data, host.bytes())->data(), host.shape, host.dtype};
}

ConstTensorView Twins::twin(const ConstTensorView& host) {
  if (host.data == nullptr) return host;
  return {array_of(host.data, host.bytes())->data(), host.shape, host.dtype};
}

std::vector<Parameter> Twins::twins(std::vector<Parameter> parameters) {
  for (Parameter& p : parameters) {
    bound_.push_back({p.value, p.grad});
    p.value = twin(p.value);
    p.grad = twin(p.grad);
  }
  return parameters;
}

std::vector<ParameterGroup> Twins::twins(std::vector<ParameterGroup> groups) {
  for (ParameterGroup& group : groups) group.parameters = twins(std::move(group.parameters));
  return groups;
}

void Twins::upload() {
  for (const Bound& host : bound_) {
    for (const void* data : {static_cast<const void*>(host.value.data), host.grad.data}) {
      if (data != nullptr) arrays_.at(data)->upload();
    }
  }
}

void Twins::download() {
  std::set<const void*> seen;
  for (const Bound& host : bound_) {
    if (host.value.data != nullptr && seen.insert(host.value.data).second) {
      GuardedArray& array = *arrays_.at(host.value.data);
      array.expect_guards_intact();
      array.download(host.value.data);
    }
    if (host.grad.data != nullptr && seen.insert(host.grad.data).second) {
      arrays_.at(host.grad.data)->expect_guards_intact();
      arrays_.at(host.grad.data)->expect_unchanged();
    }
  }
}

Optimizer::Optimizer(std::vector<Parameter> parameters, Method method, Routing routing,
                     EngineOptions engine)
    : rode::Optimizer(twins(std::move(parameters)), std::move(method), std::move(routing),
                      on_tested_device(std::move(engine))) {}

Optimizer::Optimizer(std::vector<ParameterGroup> groups, EngineOptions engine)
    : rode::Optimizer(twins(std::move(groups)), on_tested_device(std::move(engine))) {}

void Optimizer::step(double multiplier) {
  around([&] { rode::Optimizer::step(multiplier); });
}

void Optimizer::step_in_phases(double multiplier, const std::function<void()>& between) {
  around([&] {
    prepare(multiplier);
    if (between) between();
    compute();
    apply();
  });
}

void Optimizer::around(const std::function<void()>& act) {
  upload();
  try {
    act();
    rode::Optimizer::check();
  } catch (...) {
    download();
    throw;
  }
  download();
}

void Optimizer::bind_grad(std::size_t index, ConstTensorView grad) {
  rode::Optimizer::bind_grad(index, twin(grad));
  bound_[index].grad = grad;
}

void Optimizer::bind_value(std::size_t index, TensorView value) {
  rode::Optimizer::bind_value(index, twin(value));
  bound_[index].value = value;
}

Method in_fp32(const Method& method) {
  if (!on_cuda()) return method;
  for (const OptionInfo& option : method.options()) {
    if (option.key == "ns_dtype" && option.value == "auto") {
      return method.with({{"ns_dtype", "fp32"}});
    }
  }
  return method;
}

}  // namespace rode::test
