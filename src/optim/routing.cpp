// SPDX-License-Identifier: Apache-2.0
// Presets, overrides, tied weights and the table of the routing.
#include "rode/routing.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "core/nearest.h"
#include "rode/error.h"

namespace rode {
namespace {

const std::vector<std::string>& route_names() {
  static const std::vector<std::string> names{"language", "vision", "all_matrices", "matrix",
                                              "rest"};
  return names;
}

// The component of a dotted name that marks an embedding or a head; empty if none does.
std::string_view vocabulary_component(std::string_view name) {
  while (!name.empty()) {
    const std::size_t dot = name.find('.');
    const std::string_view part = name.substr(0, dot);
    if (part.starts_with("emb") || part.starts_with("unembed") || part == "wte" || part == "wpe" ||
        part == "lm_head" || part == "head" || part == "output") {
      return part;
    }
    if (dot == std::string_view::npos) break;
    name.remove_prefix(dot + 1);
  }
  return {};
}

struct Decision {
  Treatment treatment;
  std::string reason;
};

Decision by_language(const Parameter& parameter, bool tied) {
  const int rank = parameter.value.shape.rank();
  if (rank != 2) return {Treatment::rest, fmt::format("rank {}", rank)};
  if (tied) return {Treatment::rest, "tied embedding"};
  switch (parameter.role) {
    case Role::embedding: return {Treatment::rest, "embedding"};
    case Role::head: return {Treatment::rest, "head"};
    case Role::other: return {Treatment::matrix, "2-D"};
    case Role::by_name: break;
  }
  const std::string_view part = vocabulary_component(parameter.name);
  if (!part.empty()) return {Treatment::rest, fmt::format("named '{}'", part)};
  return {Treatment::matrix, "2-D"};
}

Decision by_preset(const Parameter& parameter, Route route, bool tied) {
  const int rank = parameter.value.shape.rank();
  const std::string text = fmt::format("rank {}", rank);
  switch (route) {
    case Route::language: return by_language(parameter, tied);
    case Route::all_matrices: return {rank == 2 ? Treatment::matrix : Treatment::rest, text};
    case Route::vision:
    case Route::matrix: return {rank >= 2 ? Treatment::matrix : Treatment::rest, text};
    case Route::rest: break;
  }
  return {Treatment::rest, "route 'rest'"};
}

[[noreturn]] void throw_overlap(std::string_view a, std::string_view b) {
  throw Error(ErrorKind::invalid_argument, "parameters",
              fmt::format("'{}' and '{}' share part of their memory; tied weights must have "
                          "the same memory and shape, others must not overlap",
                          a, b));
}

// Merges entries of the same memory; throws on names and memory that conflict.
std::vector<RoutedParameter> distinct(std::span<const Parameter> parameters) {
  std::vector<RoutedParameter> out;
  std::map<std::string_view, std::size_t> names;   // to index in `parameters`
  std::map<const std::byte*, std::size_t> starts;  // to position in `out`
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& p = parameters[i];
    if (p.name.empty()) {
      throw Error(ErrorKind::invalid_argument, "parameters",
                  fmt::format("parameter {} has no name; state is keyed by name", i));
    }
    const auto* begin = static_cast<const std::byte*>(p.value.data);
    const bool has_memory = begin != nullptr && p.value.numel() > 0;
    if (has_memory) {
      if (const auto same = starts.find(begin);
          same != starts.end() &&
          parameters[out[same->second].index].value.shape == p.value.shape &&
          parameters[out[same->second].index].value.dtype == p.value.dtype) {
        out[same->second].tied.push_back(i);
        continue;
      }
    }
    if (const auto [at, fresh] = names.emplace(p.name, i); !fresh) {
      throw Error(ErrorKind::invalid_argument, "parameters",
                  fmt::format("two parameters are named '{}' (entries {} and {}); give each its "
                              "own name, or pass tied weights with the same memory",
                              p.name, at->second, i));
    }
    if (has_memory && !starts.emplace(begin, out.size()).second) {
      throw_overlap(parameters[out[starts[begin]].index].name, p.name);
    }
    out.push_back({i, Treatment::rest, {}, {}});
  }
  const std::byte* end = nullptr;
  std::size_t before = 0;
  for (const auto& [begin, position] : starts) {
    const Parameter& p = parameters[out[position].index];
    if (end != nullptr && begin < end) {
      throw_overlap(parameters[before].name, p.name);
    }
    end = begin + p.value.bytes();
    before = out[position].index;
  }
  return out;
}

}  // namespace

std::string_view to_string(Route route) { return route_names()[static_cast<std::size_t>(route)]; }

std::string_view to_string(Treatment treatment) {
  switch (treatment) {
    case Treatment::matrix: return "matrix";
    case Treatment::rest: return "rest";
    case Treatment::frozen: break;
  }
  return "frozen";
}

Route route_from_string(std::string_view text) {
  const auto& names = route_names();
  const auto found = std::ranges::find(names, text);
  if (found == names.end()) {
    throw Error(ErrorKind::invalid_argument, "routing",
                fmt::format("unknown route '{}'; did you mean '{}'? routes: {}", text,
                            nearest(text, names), fmt::join(names, ", ")));
  }
  return static_cast<Route>(found - names.begin());
}

// Greedy with one remembered '*': linear in practice, never exponential.
bool glob_match(std::string_view pattern, std::string_view text) {
  std::size_t p = 0, t = 0, mark = 0;
  std::size_t star = std::string_view::npos;
  while (t < text.size()) {
    if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t]) && pattern[p] != '*') {
      ++p;
      ++t;
    } else if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      mark = t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++mark;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

std::vector<RoutedParameter> route_parameters(std::span<const Parameter> parameters,
                                              const Routing& routing) {
  std::vector<RoutedParameter> routed = distinct(parameters);
  std::vector<bool> used(routing.overrides.size(), false);
  for (RoutedParameter& entry : routed) {
    const Parameter& p = parameters[entry.index];
    const auto matches = [&](const Override& o) {
      if (glob_match(o.pattern, p.name)) return true;
      return std::ranges::any_of(entry.tied, [&](std::size_t other) {
        return glob_match(o.pattern, parameters[other].name);
      });
    };
    const auto chosen = std::ranges::find_if(routing.overrides, matches);
    for (std::size_t i = 0; i < used.size(); ++i) {
      if (!used[i] && matches(routing.overrides[i])) used[i] = true;
    }
    if (chosen != routing.overrides.end()) {
      entry.treatment = chosen->treatment;
      entry.reason = fmt::format("override '{}'", chosen->pattern);
      continue;
    }
    const Decision decision = by_preset(p, routing.route, !entry.tied.empty());
    entry.treatment = decision.treatment;
    entry.reason = decision.reason;
  }
  for (std::size_t i = 0; i < used.size(); ++i) {
    if (!used[i]) {
      throw Error(ErrorKind::invalid_argument, "routing",
                  fmt::format("override '{}' matches no parameter; patterns are globs on the "
                              "whole name, such as '*.weight'",
                              routing.overrides[i].pattern));
    }
  }
  return routed;
}

std::string routing_table(std::span<const Parameter> parameters,
                          std::span<const RoutedParameter> routed) {
  std::size_t width = 9;
  for (const RoutedParameter& entry : routed) {
    width = std::max(width, parameters[entry.index].name.size());
  }
  std::string out =
      fmt::format("{:<{}}  {:<20}  {:<7}  {}\n", "parameter", width, "shape", "rule", "reason");
  for (const RoutedParameter& entry : routed) {
    const Parameter& p = parameters[entry.index];
    std::string reason = entry.reason;
    for (const std::size_t other : entry.tied) {
      reason += fmt::format(", tied with '{}'", parameters[other].name);
    }
    out += fmt::format("{:<{}}  {:<20}  {:<7}  {}\n", p.name, width, to_string(p.value.shape),
                       to_string(entry.treatment), reason);
  }
  return out;
}

}  // namespace rode
