// SPDX-License-Identifier: Apache-2.0
// Decides for each parameter whether it uses the matrix rule or the rule of the rest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rode/parameter.h"

namespace rode {

class Method;

enum class Route {
  language,      // 2-D, neither embedding nor head; not those of one column, which are vectors.
                 // Batches of matrices too (Parameter::experts)
  vision,        // two or more dimensions, flattened to (out, rest), of more than one column
  all_matrices,  // every 2-D tensor and batch of matrices, embeddings and heads included
  matrix,        // every tensor of rank >= 2 (the command line's default)
  rest,          // nothing: every parameter uses the rule of the rest
  everything,    // every tensor, whatever its rank
  automatic,     // "auto": language, vision or lora, by what the model holds (RouteChoice)
  lora,          // the 2-D tensors named lora_*; what else is trained is the rest's
};

// Which rule steps the parameters of a group.
enum class GroupRule {
  automatic,  // optimizers that leave the rest to AdamW: by a route; the others: `matrix`
  matrix,     // the optimizer's own, with lr and weight_decay
  rest,       // the rest's, with lr_rest and weight_decay_rest
};

enum class Treatment {
  matrix,  // the optimizer's matrix rule
  rest,    // AdamW, or the optimizer's own rule if it handles everything
  frozen,  // not updated, no state
};

std::string_view to_string(Route route);
std::string_view to_string(Treatment treatment);
Route route_from_string(std::string_view text);  // throws, naming the nearest
Treatment treatment_from_string(std::string_view text);

// The route of a group; `route` is that of an automatic one.
Route group_route(GroupRule rule, Route route, const Method& method);

// What `automatic` comes to: `lora` where tensors are named lora_*, `language` where there is an
// embedding, `vision` where there are convolutions and none, else `language`.
struct RouteChoice {
  Route route = Route::language;
  std::string reason;  // empty where the route was given
};

// The first override whose pattern matches the name takes precedence over the preset.
// Patterns are globs: '*' any run, '?' one character.
struct Override {
  std::string pattern;
  Treatment treatment = Treatment::rest;
};

struct Routing {
  Route route = Route::language;
  std::vector<Override> overrides;
};

struct RoutedParameter {
  std::size_t index = 0;  // into the parameters given
  Treatment treatment = Treatment::rest;
  std::string reason;             // "named 'wte'", "rank 1", "override '*.bias'", ...
  bool experts = false;           // a batch of matrices (Parameter::experts)
  std::vector<std::size_t> tied;  // further entries that share this memory
};

// One entry per distinct parameter, in the order given. Entries that share the same
// memory and shape are one parameter, treated as an embedding under `language`.
// Throws on duplicate names, on partly overlapping memory and on a pattern that
// matches nothing.
std::vector<RoutedParameter> route_parameters(std::span<const Parameter> parameters,
                                              const Routing& routing);

// A module of a model, as far as routing asks.
struct ModuleInfo {
  Role role = Role::by_name;
  std::string type = {};   // "Linear": the reason in a table; may be empty
  std::int64_t width = 0;  // entries of an embedding, outputs of a linear layer; else 0
  bool convolution = false;
};

// A tensor of a model under every name that it has there: one parameter, named by the first.
struct ModelParameter {
  struct Place {
    std::string name;
    std::size_t module = 0;  // into the modules given
  };
  Shape shape;
  std::vector<Place> places;
};

// The route that a model takes.
RouteChoice choose_route(std::span<const ModuleInfo> modules,
                         std::span<const ModelParameter> parameters, Route route);

struct Decision {
  Treatment treatment = Treatment::rest;
  std::string reason;
  bool experts = false;  // a batch of matrices: Parameter::experts
  // An embedding, a head or a vocabulary's tensor that the language route leaves to the rest, or
  // one that an override decides: not among those that a route is judged by.
  bool aside = false;
};

// One decision per parameter. Where no module has Role::head, the head is the last one of
// Role::other as wide as the largest embedding. Of the modules that hold a tensor, an embedding
// decides before the head, the head before any other, and the name only where none is known. An
// override matches any of its names. Throws on a pattern that matches nothing.
std::vector<Decision> route_model(std::span<const ModuleInfo> modules,
                                  std::span<const ModelParameter> parameters,
                                  const Routing& routing);

// The part of the parameters outside of embeddings, head and overrides that the rest gets: adapters
// warn where it is more than half. `elements` of a parameter that is not stepped are 0.
double rest_share(std::span<const Decision> decisions, std::span<const std::int64_t> elements);

// The routing as a readable table, with the rate and the decay that `method` gives to each
// parameter.
std::string routing_table(std::span<const Parameter> parameters,
                          std::span<const RoutedParameter> routed, const Method& method);

bool glob_match(std::string_view pattern, std::string_view text);

}  // namespace rode
