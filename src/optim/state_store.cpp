// SPDX-License-Identifier: Apache-2.0
// Allocates state and copies it from files, all or nothing.
#include "optim/state_store.h"

#include <map>

#include <fmt/format.h>

#include "core/nearest.h"
#include "optim/state_values.h"
#include "rode/error.h"

namespace rode {

ParameterState::ParameterState(std::string parameter, std::vector<StateSpec> specs,
                               Backend& backend, const StateAllocator& memory)
    : parameter_(std::move(parameter)), specs_(std::move(specs)) {
  buffers_.reserve(specs_.size());
  for (const StateSpec& spec : specs_) {
    const std::size_t bytes = static_cast<std::size_t>(spec.shape.numel()) * size_of(spec.dtype);
    // An empty tensor has no address, but the jobs need one.
    const StateMemory given =
        memory ? memory(parameter_, spec.key, spec.shape, spec.dtype) : StateMemory{};
    if (memory && given.data == nullptr && bytes > 0) {
      throw Error(ErrorKind::invalid_argument, "state",
                  fmt::format("no memory was given for '{}' of '{}'", spec.key, parameter_));
    }
    buffers_.push_back(given.data == nullptr ? backend.allocate(bytes)
                                             : backend.adopt(given.data, bytes));
    kept_.push_back(given.kept);
  }
}

void* ParameterState::find(std::string_view key) const {
  for (std::size_t i = 0; i < specs_.size(); ++i) {
    if (specs_[i].key == key) return buffers_[i]->data();
  }
  return nullptr;
}

DType ParameterState::dtype(std::string_view key) const {
  for (const StateSpec& spec : specs_) {
    if (spec.key == key) return spec.dtype;
  }
  return DType::f32;
}

bool ParameterState::kept(std::string_view key) const {
  for (std::size_t i = 0; i < specs_.size(); ++i) {
    if (specs_[i].key == key) return kept_[i];
  }
  return false;
}

ConstTensorView ParameterState::view(std::size_t index) const {
  return {buffers_[index]->host_view(), specs_[index].shape, specs_[index].dtype};
}

void ParameterState::upload(std::size_t index, const ConstTensorView& values) const {
  buffers_[index]->upload(values.data, values.bytes());
}

std::string ParameterState::name(std::size_t index) const {
  return fmt::format("state.{}.{}", parameter_, specs_[index].key);
}

std::size_t spec_bytes(const std::vector<StateSpec>& specs) {
  std::size_t bytes = 0;
  for (const StateSpec& spec : specs) {
    bytes += static_cast<std::size_t>(spec.shape.numel()) * size_of(spec.dtype);
  }
  return bytes;
}

std::vector<std::string> load_state(const SafetensorsFile& file, bool complete,
                                    const std::vector<const ParameterState*>& states) {
  struct Place {
    const ParameterState* state;
    std::size_t index;
  };
  std::map<std::string, Place> expected;
  std::vector<std::string> names, absent;
  for (const ParameterState* state : states) {
    for (std::size_t i = 0; i < state->specs().size(); ++i) {
      names.push_back(state->name(i));
      expected.emplace(names.back(), Place{state, i});
      if (!file.contains(names.back())) absent.push_back(names.back());
    }
  }

  const auto refuse = [](const std::string& message) {
    throw Error(ErrorKind::state_mismatch, "load state", message);
  };
  for (const std::string& name : file.names()) {
    if (!name.starts_with("state.")) continue;
    const auto found = expected.find(name);
    if (found == expected.end()) {
      refuse(fmt::format(
          "the file has '{}', which these parameters and options do not have{}; "
          "load it with the parameters and the optimizer that saved it",
          name,
          names.empty() ? std::string() : fmt::format(" (nearest: '{}')", nearest(name, names))));
    }
    const ConstTensorView saved = file.tensor(name);
    const StateSpec& here = found->second.state->specs()[found->second.index];
    if (!(saved.shape == here.shape) || saved.dtype != here.dtype) {
      refuse(
          fmt::format("'{}' is {} {} in the file, but {} {} here; load it with the parameters "
                      "and options that saved it",
                      name, to_string(saved.dtype), to_string(saved.shape), to_string(here.dtype),
                      to_string(here.shape)));
    }
    check_state_values(name, here.key, saved);
  }
  if (complete && !absent.empty()) {
    refuse(fmt::format(
        "the file lacks '{}'{}; it was saved by another optimizer, other options "
        "or other parameters",
        absent.front(),
        absent.size() == 1 ? std::string() : fmt::format(" and {} more", absent.size() - 1)));
  }
  for (const auto& [name, place] : expected) {
    if (file.contains(name)) place.state->upload(place.index, file.tensor(name));
  }
  return absent;
}

}  // namespace rode
