// SPDX-License-Identifier: Apache-2.0
// Matrices that begin at zero, where a rule leaves those to the rest (on_zero = rest) or lets them
// start along their momentum (on_zero = start).
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "optim/rule.h"
#include "rode/parameter.h"
#include "rode/routing.h"
#include "rode/safetensors.h"

namespace rode {

// State of a matrix with on_zero = start: L of rode/optim/rode.h, 0 where it did not begin at zero.
inline constexpr std::string_view kStartNorm = "start_norm";

// Moves the matrices that are known to have begun at zero to the rest, if the rule wants that.
void rest_zero_starts(const Rule& rule, std::span<const Parameter> parameters,
                      std::vector<RoutedParameter>& routed);

// The routing of parameters that may be known by their shapes alone: those whose start is not
// known count as non-zero.
std::vector<RoutedParameter> planned_routing(const Rule& rule,
                                             std::span<const Parameter> parameters,
                                             const Routing& routing);

// What the state of a parameter in a file tells of its start: it has the moments of the rest's
// rule, or a matrix's momentum, or neither (nothing).
std::optional<bool> zero_start_in(const SafetensorsFile& file, std::string_view parameter);

}  // namespace rode
