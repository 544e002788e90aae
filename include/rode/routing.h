// SPDX-License-Identifier: Apache-2.0
// Decides for each parameter whether it uses the matrix rule or the rule of the rest.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rode/parameter.h"

namespace rode {

enum class Route {
  language,      // 2-D, neither embedding nor head
  vision,        // two or more dimensions, flattened to (out, rest)
  all_matrices,  // every 2-D tensor, embeddings and heads included
  matrix,        // every tensor of rank >= 2 (the command line's default)
  rest,          // nothing: every parameter uses the rule of the rest
};

enum class Treatment {
  matrix,  // the optimizer's matrix rule
  rest,    // AdamW, or the optimizer's own rule if it handles everything
  frozen,  // not updated, no state
};

std::string_view to_string(Route route);
std::string_view to_string(Treatment treatment);
Route route_from_string(std::string_view text);  // throws, naming the nearest

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
  std::string reason;             // "embedding by name 'wte'", "rank 1", ...
  std::vector<std::size_t> tied;  // further entries that share this memory
};

// One entry per distinct parameter, in the order given. Entries that share the same
// memory and shape are one parameter, treated as an embedding under `language`.
// Throws on duplicate names, on partly overlapping memory and on a pattern that
// matches nothing.
std::vector<RoutedParameter> route_parameters(std::span<const Parameter> parameters,
                                              const Routing& routing);

// The routing as a readable table.
std::string routing_table(std::span<const Parameter> parameters,
                          std::span<const RoutedParameter> routed);

bool glob_match(std::string_view pattern, std::string_view text);

}  // namespace rode
