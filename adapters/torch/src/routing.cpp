// SPDX-License-Identifier: Apache-2.0
// Describes a model's modules to the engine, which routes them.
#include "rode/torch/routing.h"

#include <algorithm>
#include <cstdint>
#include <map>

#include <c10/util/Exception.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>

#include "rode/error.h"
#include "tensors.h"

namespace rode::torch {
namespace {

namespace nn = ::torch::nn;

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

bool is_convolution(const nn::Module& module) {
  return module.as<nn::Conv1dImpl>() != nullptr || module.as<nn::Conv2dImpl>() != nullptr ||
         module.as<nn::Conv3dImpl>() != nullptr ||
         module.as<nn::ConvTranspose1dImpl>() != nullptr ||
         module.as<nn::ConvTranspose2dImpl>() != nullptr ||
         module.as<nn::ConvTranspose3dImpl>() != nullptr;
}

ModuleInfo describe(const nn::Module& module) {
  if (const std::int64_t entries = embedding_entries(module); entries > 0) {
    return {.role = Role::embedding, .width = entries};
  }
  if (is_convolution(module)) return {.role = Role::other, .convolution = true};
  if (!is_projection(module)) return {};
  const auto* linear = module.as<nn::LinearImpl>();
  return {.role = Role::other, .width = linear == nullptr ? 0 : linear->options.out_features()};
}

// A model as the engine sees it, and the tensors next to it.
struct Model {
  std::vector<ModuleInfo> modules;
  std::vector<ModelParameter> parameters;
  std::vector<at::Tensor> tensors;
  std::map<const void*, std::size_t> known;  // a tensor of several modules is one parameter

  void add(const std::string& prefix, const nn::Module& module) {
    for (const auto& entry : module.named_parameters(/*recurse=*/false)) {
      const at::Tensor& tensor = entry.value();
      const auto [same, is_new] = known.emplace(tensor.unsafeGetTensorImpl(), parameters.size());
      if (is_new) {
        parameters.push_back({shape_of(tensor), {}});
        tensors.push_back(tensor);
      }
      parameters[same->second].places.push_back({prefix + entry.key(), modules.size()});
    }
    modules.push_back(describe(module));
  }
};

}  // namespace

RoutedModule route_module(const nn::Module& module, Route route,
                          const std::vector<Override>& overrides) {
  Model model;
  model.add("", module);  // itself first: it need not be owned by a shared pointer
  for (const auto& child : module.named_modules(/*name_prefix=*/"", /*include_self=*/false)) {
    model.add(child.key() + ".", *child.value());
  }
  std::vector<std::string> names;
  for (const ModelParameter& p : model.parameters) names.push_back(p.places.front().name);
  refuse_shared_memory(names, model.tensors);
  const std::vector<Decision> routed =
      route_model(model.modules, model.parameters, {route, overrides});
  RoutedModule out;
  out.choice = choose_route(model.modules, model.parameters, route);
  std::vector<std::int64_t> stepped(routed.size(), 0);
  for (std::size_t i = 0; i < routed.size(); ++i) {
    const Treatment treatment = routed[i].treatment;
    if (treatment == Treatment::frozen || !model.tensors[i].requires_grad()) continue;
    stepped[i] = model.tensors[i].numel();
    NamedParameters& group = treatment == Treatment::matrix ? out.matrices : out.rest;
    group.names.push_back(names[i]);
    group.tensors.push_back(model.tensors[i]);
  }
  if (out.matrices.tensors.empty() && out.rest.tensors.empty()) {
    throw Error(ErrorKind::invalid_argument, "routing",
                "module '" + module.name() +
                    "' has no parameter to step; expected one with requires_grad that no "
                    "override freezes");
  }
  out.rest_share = rest_share(routed, stepped);
  return out;
}

void warn_of_rest(const RoutedModule& routed, const Method& method) {
  if (routed.rest_share <= 0.5 || !method.leaves_rest_to_adamw()) return;
  TORCH_WARN("[routing] ", static_cast<int>(100 * routed.rest_share),
             " % of the parameters outside embeddings and head are left to AdamW (route ",
             std::string(to_string(routed.choice.route)),
             "); choose another route or set overrides; engine().routing_table() shows them");
}

}  // namespace rode::torch
