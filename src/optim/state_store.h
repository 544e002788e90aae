// SPDX-License-Identifier: Apache-2.0
// The owned state of every parameter, keyed by name.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "optim/rule.h"
#include "rode/optimizer.h"
#include "rode/safetensors.h"

namespace rode {

// State tensors of one parameter.
class ParameterState final : public StateSlots {
 public:
  // `memory` null: allocated by the backend.
  ParameterState(std::string parameter, std::vector<StateSpec> specs, Backend& backend,
                 const StateAllocator& memory);

  void* find(std::string_view key) const override;
  DType dtype(std::string_view key) const override;
  bool kept(std::string_view key) const override;

  const std::string& parameter() const { return parameter_; }
  const std::vector<StateSpec>& specs() const { return specs_; }
  ConstTensorView view(std::size_t index) const;
  void upload(std::size_t index, const ConstTensorView& values) const;
  std::string name(std::size_t index) const;  // "state.<parameter>.<key>"

 private:
  std::string parameter_;
  std::vector<StateSpec> specs_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
  std::vector<bool> kept_;
};

std::size_t spec_bytes(const std::vector<StateSpec>& specs);

// Copies every "state." tensor of `file` to the matching one, converted where `state_dtype` was
// different when it was saved, or throws and copies nothing. Returns
// the names that were expected but absent; with `complete`, throws instead.
std::vector<std::string> load_state(const SafetensorsFile& file, bool complete,
                                    const std::vector<const ParameterState*>& states);

}  // namespace rode
