// SPDX-License-Identifier: Apache-2.0
// State of an optimizer that several processes share: the whole out of the parts, and a part out of
// the whole.
#include <sstream>

#include <ATen/ops/cat.h>
#include <torch/serialize.h>

#include "rode/error.h"
#include "share.h"

namespace rode::torch {
namespace {

using Entries = c10::Dict<std::string, at::Tensor>;  // "3 momentum": of the fourth parameter

std::string packed(const Entries& entries) {
  const std::vector<char> bytes = ::torch::pickle_save(c10::IValue(entries));
  return {bytes.begin(), bytes.end()};
}

std::map<std::size_t, StateTensors> unpacked(const std::string& text) {
  const c10::IValue value = ::torch::pickle_load(std::vector<char>(text.begin(), text.end()));
  std::map<std::size_t, StateTensors> out;
  for (const auto& entry : value.toGenericDict()) {
    std::istringstream in(entry.key().toStringRef());
    std::size_t index = 0;
    std::string key;
    in >> index >> key;
    out[index][key] = entry.value().toTensor();
  }
  return out;
}

}  // namespace

std::optional<std::map<std::size_t, StateTensors>> EngineOptimizer::Share::collect(
    const ParamStates& states) {
  Entries mine;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto found = states.find(parameters_[i].unsafeGetTensorImpl());
    if (found == states.end() || own(i) == nullptr) continue;
    const auto* state = dynamic_cast<const ParamState*>(found->second.get());
    if (state == nullptr) continue;
    for (const auto& [key, tensor] : state->tensors) {
      mine.insert(std::to_string(i) + " " + key, tensor.detach().to(at::kCPU));
    }
  }
  std::vector<std::map<std::size_t, StateTensors>> told;
  for (const std::string& text : ranks_->collect(packed(mine))) told.push_back(unpacked(text));
  if (told.empty()) return std::nullopt;
  std::map<std::size_t, std::pair<std::vector<const SharePiece*>, std::vector<StateTensors>>> parts;
  for (const SharePiece& piece : plan_.pieces) {  // by rank, which is the order of the elements
    auto& held = told[static_cast<std::size_t>(piece.rank)];
    if (const auto found = held.find(piece.parameter); found != held.end()) {
      parts[piece.parameter].first.push_back(&piece);
      parts[piece.parameter].second.push_back(std::move(found->second));
    }
  }
  std::map<std::size_t, StateTensors> out;
  for (const auto& [index, both] : parts) out[index] = joined(index, both.first, both.second);
  return out;
}

StateTensors EngineOptimizer::Share::joined(std::size_t index,
                                            const std::vector<const SharePiece*>& pieces,
                                            const std::vector<StateTensors>& parts) const {
  if (pieces.front()->whole) return parts.front();
  StateTensors out;
  for (const auto& [key, first] : parts.front()) {
    std::vector<at::Tensor> tensors;
    bool divided = true;  // one entry for every element; the others, counts, are alike everywhere
    for (std::size_t i = 0; i < parts.size(); ++i) {
      tensors.push_back(parts[i].at(key));
      divided = divided && tensors.back().numel() == pieces[i]->count;
    }
    if (pieces.front()->unit > 0) {
      out[key] = at::cat(tensors);  // one row for every matrix
    } else {
      out[key] = divided ? at::cat(tensors).view(parameters_[index].sizes()) : first;
    }
  }
  return out;
}

std::optional<StateTensors> EngineOptimizer::Share::cut(std::size_t index,
                                                        const StateTensors& whole) const {
  const SharePiece* piece = own(index);
  if (piece == nullptr) return std::nullopt;
  if (piece->whole) return whole;
  StateTensors out;
  for (const auto& [key, tensor] : whole) {
    const bool divided = piece->unit > 0 || tensor.numel() == parameters_[index].numel();
    out[key] = divided ? part_of(tensor, *piece).clone() : tensor;
  }
  return out;
}

}  // namespace rode::torch
