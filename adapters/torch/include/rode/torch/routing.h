// SPDX-License-Identifier: Apache-2.0
// Which parameters of a module use the matrix rule: module types decide, or names if those are
// unknown.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "rode/routing.h"
#include "rode/torch/options.h"

namespace rode::torch {

struct NamedParameters {
  std::vector<std::string> names;
  std::vector<at::Tensor> tensors;
};

struct RoutedModule {
  NamedParameters matrices, rest;
  RouteChoice choice;  // what Route::automatic came to, and why
  // Of the parameters outside of embeddings, head and overrides, the part that is not the
  // matrices'.
  double rest_share = 0;
};

// Route::automatic is `lora`, `language` or `vision`, by the modules and names (rode/routing.h).
// Under Route::language a matrix is what has two dimensions and is neither an embedding nor the
// head: the last Linear with as many outputs as the largest Embedding has entries. A tensor of
// several modules is one parameter under its first name; one of them an embedding makes it one.
// The first override whose pattern matches the name wins over the route. Parameters with
// requires_grad false are left out.
RoutedModule route_module(const ::torch::nn::Module& module, Route route = Route::automatic,
                          const std::vector<Override>& overrides = {});
// Warns where an optimizer that leaves the rest to AdamW gets few matrices.
void warn_of_rest(const RoutedModule& routed, const Method& method);

// The groups that an optimizer makes of a module, to look at and to edit: matrices, then the rest.
template <class EngineOptions>
std::vector<::torch::optim::OptimizerParamGroup> param_groups(
    const ::torch::nn::Module& module, const Options<EngineOptions>& options = {},
    const std::vector<Override>& overrides = {}) {
  RoutedModule routed = route_module(module, options.route, overrides);
  warn_of_rest(routed, options.method());
  std::vector<::torch::optim::OptimizerParamGroup> groups;
  const auto add = [&](NamedParameters& members, GroupRule rule) {
    if (members.tensors.empty()) return;
    auto own = std::make_unique<Options<EngineOptions>>(options);
    own->rule = rule;
    own->names = std::move(members.names);
    groups.emplace_back(std::move(members.tensors), std::move(own));
  };
  add(routed.matrices, GroupRule::matrix);
  add(routed.rest, GroupRule::rest);
  return groups;
}

}  // namespace rode::torch
