// SPDX-License-Identifier: Apache-2.0
// Allocates state and copies it from files, all or nothing.
#include "optim/state_store.h"

#include <map>

#include <fmt/format.h>

#include "core/nearest.h"
#include "optim/state_values.h"
#include "rode/error.h"
#include "rode/stored_state.h"

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

namespace {

struct Place {
  const ParameterState* state = nullptr;
  std::size_t index = 0;

  const StateSpec& spec() const { return state->specs()[index]; }
};
using Places = std::map<std::string, Place>;

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorKind::state_mismatch, "load state", message);
}

// "state.w.momentum" of "state.w.momentum_scale"; empty for any other name.
std::string scaled_name(const std::string& name) {
  const std::string ending = scale_key("");
  return name.ends_with(ending) ? name.substr(0, name.size() - ending.size()) : std::string();
}

ConstStoredState saved_state(const SafetensorsFile& file, const std::string& name) {
  const std::string scales = scale_key(name);
  return {file.tensor(name), file.contains(scales) ? file.tensor(scales) : ConstTensorView{}};
}

// The same as it is stored here, over these bytes (null: of shapes and types alone).
StoredState own_state(const Places& places, const std::string& name, std::byte* values,
                      std::byte* scales) {
  const StateSpec& spec = places.at(name).spec();
  StoredState out{{values, spec.shape, spec.dtype}, {}};
  if (const auto found = places.find(scale_key(name)); found != places.end()) {
    const StateSpec& scale = found->second.spec();
    out.scales = {scales, scale.shape, scale.dtype};
  }
  return out;
}

bool same_storage(const ConstTensorView& saved, const StateSpec& here) {
  return saved.shape == here.shape && saved.dtype == here.dtype;
}

// Whether the file has the state `name` in another storage than it has here.
bool converted(const SafetensorsFile& file, const Places& places, const std::string& name) {
  const auto found = places.find(name);
  if (found == places.end() || !file.contains(name)) return false;
  const DType saved = file.tensor(name).dtype, here = found->second.spec().dtype;
  return saved != here && is_stored_state(saved) && is_stored_state(here);
}

// Throws where an entry of the file does not fit.
void check_entry(const SafetensorsFile& file, const Places& places, const std::string& name,
                 const std::vector<std::string>& names) {
  const std::string values = scaled_name(name);
  const bool scales = !values.empty() && file.contains(values) && places.contains(values) &&
                      file.tensor(values).dtype == DType::i8;
  const auto found = places.find(name);
  if (found == places.end() && !scales) {
    refuse(fmt::format(
        "the file has '{}', which these parameters and options do not have{}; "
        "load it with the parameters and the optimizer that saved it",
        name,
        names.empty() ? std::string() : fmt::format(" (nearest: '{}')", nearest(name, names))));
  }
  const ConstTensorView saved = file.tensor(name);
  const std::string key = name.substr(name.rfind('.') + 1);
  if (saved.dtype == DType::i8 && !file.contains(scale_key(name))) {
    refuse(
        fmt::format("the file has '{}', which is I8, but not its scales, '{}'; expected both; "
                    "load a file that has them",
                    name, scale_key(name)));
  }
  if (found != places.end() && !values.empty() && places.contains(values) && !scales) {
    refuse(
        fmt::format("the file has '{}', but no I8 tensor '{}' that it belongs to; remove it, or "
                    "load a file that has both",
                    name, values));
  }
  if (converted(file, places, name)) {
    check_convertible(name, saved_state(file, name), own_state(places, name, nullptr, nullptr));
  } else if (found != places.end() && !converted(file, places, values) &&
             !same_storage(saved, found->second.spec())) {
    const StateSpec& here = found->second.spec();
    refuse(
        fmt::format("'{}' is {} {} in the file, but {} {} here; load it with the parameters "
                    "and options that saved it",
                    name, to_string(saved.dtype), to_string(saved.shape), to_string(here.dtype),
                    to_string(here.shape)));
  }
  const bool with_sign = found != places.end() && found->second.spec().with_sign;
  check_state_values(name, key, saved, with_sign);
}

// Uploads one entry, with its scales where it is converted to int8.
void load_entry(const SafetensorsFile& file, const Places& places, const std::string& name) {
  const Place& place = places.at(name);
  if (!converted(file, places, name)) {
    place.state->upload(place.index, file.tensor(name));
    return;
  }
  const StoredState sizes = own_state(places, name, nullptr, nullptr);
  std::vector<std::byte> values(sizes.values.bytes());
  std::vector<std::byte> scales(sizes.scales.dtype == DType::f32 ? sizes.scales.bytes() : 0);
  const StoredState fresh = own_state(places, name, values.data(), scales.data());
  convert_state(name, saved_state(file, name), fresh);
  place.state->upload(place.index, fresh.values);
  if (fresh.values.dtype != DType::i8) return;
  const Place& beside = places.at(scale_key(name));
  beside.state->upload(beside.index, fresh.scales);
}

}  // namespace

std::vector<std::string> load_state(const SafetensorsFile& file, bool complete,
                                    const std::vector<const ParameterState*>& states) {
  Places expected;
  std::vector<std::string> names, absent;
  for (const ParameterState* state : states) {
    for (std::size_t i = 0; i < state->specs().size(); ++i) {
      names.push_back(state->name(i));
      expected.emplace(names.back(), Place{state, i});
    }
  }
  for (const std::string& name : names) {
    // Scales come with what they are made from.
    const bool made = converted(file, expected, scaled_name(name));
    if (!file.contains(name) && !made) absent.push_back(name);
  }
  for (const std::string& name : file.names()) {
    if (name.starts_with("state.")) check_entry(file, expected, name, names);
  }
  if (complete && !absent.empty()) {
    refuse(fmt::format(
        "the file lacks '{}'{}; it was saved by another optimizer, other options "
        "or other parameters",
        absent.front(),
        absent.size() == 1 ? std::string() : fmt::format(" and {} more", absent.size() - 1)));
  }
  for (const auto& [name, place] : expected) {
    const bool made = converted(file, expected, scaled_name(name));
    if (file.contains(name) && !made) load_entry(file, expected, name);
  }
  return absent;
}

}  // namespace rode
