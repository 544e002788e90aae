// SPDX-License-Identifier: Apache-2.0
// Gives every parameter of a module its role, and lets the engine route.
#include "rode/torch/routing.h"

#include <algorithm>
#include <cstdint>
#include <map>

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>

#include "rode/error.h"
#include "tensors.h"

namespace rode::torch {
namespace {

namespace nn = ::torch::nn;

struct Owner {
  std::string prefix;
  const nn::Module* module = nullptr;
};

std::int64_t embedding_entries(const nn::Module& module) {
  if (const auto* embedding = module.as<nn::EmbeddingImpl>()) {
    return embedding->options.num_embeddings();
  }
  if (const auto* bag = module.as<nn::EmbeddingBagImpl>()) return bag->options.num_embeddings();
  return 0;
}

// Whose two-dimensional weights are maps between features.
bool is_projection(const nn::Module& module) {
  return module.as<nn::LinearImpl>() != nullptr || module.as<nn::BilinearImpl>() != nullptr ||
         module.as<nn::MultiheadAttentionImpl>() != nullptr ||
         module.as<nn::RNNImpl>() != nullptr || module.as<nn::LSTMImpl>() != nullptr ||
         module.as<nn::GRUImpl>() != nullptr || module.as<nn::RNNCellImpl>() != nullptr ||
         module.as<nn::LSTMCellImpl>() != nullptr || module.as<nn::GRUCellImpl>() != nullptr;
}

// The module itself first: it need not be owned by a shared pointer.
std::vector<Owner> owners(const nn::Module& module) {
  std::vector<Owner> out{{"", &module}};
  for (const auto& child : module.named_modules(/*name_prefix=*/"", /*include_self=*/false)) {
    out.push_back({child.key() + ".", child.value().get()});
  }
  return out;
}

const nn::Module* find_head(const std::vector<Owner>& modules) {
  std::int64_t entries = 0;
  for (const Owner& owner : modules) {
    entries = std::max(entries, embedding_entries(*owner.module));
  }
  const nn::Module* head = nullptr;
  for (const Owner& owner : modules) {
    const auto* linear = owner.module->as<nn::LinearImpl>();
    if (entries > 0 && linear != nullptr && linear->options.out_features() == entries) {
      head = owner.module;
    }
  }
  return head;
}

Role role_of(const nn::Module& owner, const nn::Module* head) {
  if (embedding_entries(owner) > 0) return Role::embedding;
  if (&owner == head) return Role::head;
  return is_projection(owner) ? Role::other : Role::by_name;
}

// Of a weight that several modules share, the greatest role counts.
int weight_of(Role role) {
  switch (role) {
    case Role::by_name: return 0;
    case Role::other: return 1;
    case Role::head: return 2;
    case Role::embedding: return 3;
  }
  return 0;
}

}  // namespace

RoutedModule route_module(const nn::Module& module, Route route,
                          const std::vector<Override>& overrides) {
  const std::vector<Owner> modules = owners(module);
  const nn::Module* head = find_head(modules);
  std::vector<Parameter> parameters;
  std::vector<at::Tensor> tensors;
  std::map<const void*, std::size_t> known;  // a tensor of several modules is one parameter
  for (const Owner& owner : modules) {
    for (const auto& entry : owner.module->named_parameters(/*recurse=*/false)) {
      const at::Tensor& tensor = entry.value();
      const Role role = role_of(*owner.module, head);
      const auto [same, is_new] = known.emplace(tensor.unsafeGetTensorImpl(), parameters.size());
      if (!is_new) {
        Role& first = parameters[same->second].role;
        if (weight_of(role) > weight_of(first)) first = role;
        continue;
      }
      Parameter& p = parameters.emplace_back();
      p.name = owner.prefix + entry.key();
      p.value = {tensor.data_ptr(), shape_of(tensor),
                 engine_dtype(tensor.scalar_type()).value_or(DType::f32)};
      p.role = role;
      tensors.push_back(tensor);
    }
  }
  RoutedModule out;
  for (const RoutedParameter& entry : route_parameters(parameters, {route, overrides})) {
    if (!entry.tied.empty()) {
      // Their gradients are two, and no step would take both.
      throw Error(ErrorKind::invalid_argument, "routing",
                  "'" + parameters[entry.index].name + "' and '" +
                      parameters[entry.tied.front()].name +
                      "' are two parameters on the same memory; register one tensor in both "
                      "modules to tie them");
    }
    if (entry.treatment == Treatment::frozen || !tensors[entry.index].requires_grad()) continue;
    NamedParameters& group = entry.treatment == Treatment::matrix ? out.matrices : out.rest;
    group.names.push_back(parameters[entry.index].name);
    group.tensors.push_back(tensors[entry.index]);
  }
  if (out.matrices.tensors.empty() && out.rest.tensors.empty()) {
    throw Error(ErrorKind::invalid_argument, "routing",
                "module '" + module.name() +
                    "' has no parameter to step; expected one with requires_grad that no "
                    "override freezes");
  }
  return out;
}

}  // namespace rode::torch
