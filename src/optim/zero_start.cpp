// SPDX-License-Identifier: Apache-2.0
// Which matrices began at zero, and what becomes of them.
#include "optim/zero_start.h"

#include <fmt/format.h>

namespace rode {

void rest_zero_starts(const Rule& rule, std::span<const Parameter> parameters,
                      std::vector<RoutedParameter>& routed) {
  if (!rule.zero_norm()) return;
  for (RoutedParameter& entry : routed) {
    if (entry.treatment != Treatment::matrix) continue;
    if (!parameters[entry.index].zero_start.value_or(false)) continue;
    entry.treatment = Treatment::rest;
    entry.reason = "zero start";
  }
}

std::vector<RoutedParameter> planned_routing(const Rule& rule,
                                             std::span<const Parameter> parameters,
                                             const Routing& routing) {
  std::vector<RoutedParameter> routed = route_parameters(parameters, routing);
  rest_zero_starts(rule, parameters, routed);
  return routed;
}

std::optional<bool> zero_start_in(const SafetensorsFile& file, std::string_view parameter) {
  if (file.contains(fmt::format("state.{}.exp_avg", parameter))) return true;
  if (file.contains(fmt::format("state.{}.momentum", parameter))) return false;
  return std::nullopt;
}

}  // namespace rode
