// SPDX-License-Identifier: Apache-2.0
// Routes, overrides, tied weights, the head of a model, and the table of the routing.
#include "rode/routing.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "core/nearest.h"
#include "optim/route_signs.h"
#include "rode/error.h"
#include "rode/method.h"

namespace rode {
namespace {

const std::vector<std::string>& route_names() {
  static const std::vector<std::string> names{"language", "vision",     "all_matrices", "matrix",
                                              "rest",     "everything", "auto",         "lora"};
  return names;
}

const std::vector<std::string>& treatment_names() {
  static const std::vector<std::string> names{"matrix", "rest", "frozen"};
  return names;
}

std::size_t index_of(std::string_view text, const std::vector<std::string>& names,
                     std::string_view kind) {
  const auto found = std::ranges::find(names, text);
  if (found == names.end()) {
    throw Error(ErrorKind::invalid_argument, "routing",
                fmt::format("unknown {0} '{1}'; did you mean '{2}'? {0}s: {3}", kind, text,
                            nearest(text, names), fmt::join(names, ", ")));
  }
  return static_cast<std::size_t>(found - names.begin());
}

// What is known of a tensor, whoever asks.
struct Candidate {
  const Shape* shape;
  std::vector<std::string_view> names;  // the first one is the parameter's
  Role role;
  std::string_view type;             // of the module that gave the role; may be empty
  std::optional<bool> experts = {};  // as the caller says
};

bool is_of_experts(const Candidate& c) {
  const auto of_experts = [](std::string_view part) {
    return part.find("expert") != std::string_view::npos;
  };
  return c.type.find("Expert") != std::string_view::npos ||
         any_component(c.names.front(), of_experts);
}

// One vector for each expert, (E, n), (E, 1, n) or (E, n, 1): no matrix, though of rank 2 or 3.
bool is_batch_of_biases(const Candidate& c) {
  const Shape& shape = *c.shape;
  if (!is_of_experts(c)) return false;
  if (shape.rank() == 3) return shape[1] == 1 || shape[2] == 1;
  return shape.rank() == 2 && c.names.front().ends_with("bias");
}

// Weights of several experts in one tensor.
bool is_batch(const Candidate& c) {
  return c.experts.value_or(c.shape->rank() == 3 && is_of_experts(c) && !is_batch_of_biases(c));
}

// A vector whatever its rank, such as the gains of weight_norm.
bool is_column(const Shape& shape) {
  return shape.rank() >= 2 && shape.numel() > 0 && shape.numel() == shape[0];
}

// `ties_embed`: whether entries on one memory are an embedding, whatever else is known.
Decision by_language(const Candidate& c, bool ties_embed) {
  if (is_batch(c)) return {Treatment::matrix, "batch of matrices"};
  if (is_batch_of_biases(c)) return {Treatment::rest, "biases of experts"};
  if (c.shape->rank() != 2) return {Treatment::rest, fmt::format("rank {}", c.shape->rank())};
  const bool tied = c.names.size() > 1;
  if (tied && ties_embed) return {Treatment::rest, "tied embedding"};
  if (c.role == Role::embedding) {
    const std::string_view what = c.type.empty() ? "embedding" : c.type;
    return {Treatment::rest, fmt::format("{}{}", what, tied ? ", tied" : "")};
  }
  if (c.role == Role::head) return {Treatment::rest, "head", false, true};
  const std::string_view part =
      c.role == Role::by_name ? vocabulary_component(c.names.front()) : std::string_view();
  if (!part.empty()) return {Treatment::rest, fmt::format("named '{}'", part), false, true};
  if (is_column(*c.shape)) return {Treatment::rest, "one column"};
  const bool known = c.role == Role::other && !c.type.empty();
  return {Treatment::matrix, std::string(known ? c.type : "2-D")};
}

Decision by_route(const Candidate& c, Route route, bool ties_embed) {
  const int rank = c.shape->rank();
  const std::string text = fmt::format("rank {}", rank);
  switch (route) {
    case Route::language: return by_language(c, ties_embed);
    case Route::all_matrices:
      return {rank == 2 || is_batch(c) ? Treatment::matrix : Treatment::rest, text};
    case Route::vision:
      if (is_column(*c.shape)) return {Treatment::rest, "one column"};
      [[fallthrough]];
    case Route::matrix: return {rank >= 2 ? Treatment::matrix : Treatment::rest, text};
    case Route::lora: {
      const bool lora = rank == 2 && std::ranges::any_of(c.names, is_lora_name);
      return lora ? Decision{Treatment::matrix, "LoRA"} : Decision{Treatment::rest, "not LoRA's"};
    }
    case Route::automatic: break;  // it has been chosen
    case Route::everything: return {Treatment::matrix, "route 'everything'"};
    case Route::rest: break;
  }
  return {Treatment::rest, "route 'rest'"};
}

// The first override that matches, else the route; remembers which overrides were of use.
class Decider {
 public:
  // `route` is the one that the routing's came to.
  Decider(const Routing& routing, Route route, bool ties_embed)
      : routing_(routing),
        route_(route),
        ties_embed_(ties_embed),
        used_(routing.overrides.size(), false) {}

  Decision decide(const Candidate& c) {
    const Override* chosen = nullptr;
    for (std::size_t i = 0; i < used_.size(); ++i) {
      const Override& o = routing_.overrides[i];
      if (used_[i] && chosen != nullptr) continue;
      const bool matches = std::ranges::any_of(
          c.names, [&](std::string_view name) { return glob_match(o.pattern, name); });
      if (matches) used_[i] = true;
      if (matches && chosen == nullptr) chosen = &o;
    }
    Decision decision = chosen == nullptr ? by_route(c, route_, ties_embed_)
                                          : Decision{chosen->treatment,
                                                     fmt::format("override '{}'", chosen->pattern)};
    decision.experts = is_batch(c);
    decision.aside = decision.aside || chosen != nullptr || c.role == Role::embedding;
    return decision;
  }

  void check_all_used() const {
    for (std::size_t i = 0; i < used_.size(); ++i) {
      if (used_[i]) continue;
      throw Error(ErrorKind::invalid_argument, "routing",
                  fmt::format("override '{}' matches no parameter; patterns are globs on the "
                              "whole name, such as '*.weight'",
                              routing_.overrides[i].pattern));
    }
  }

 private:
  const Routing& routing_;
  Route route_;
  bool ties_embed_;
  std::vector<bool> used_;
};

// Of a tensor that several modules hold, the greatest counts.
int precedence(Role role) {
  switch (role) {
    case Role::by_name: return 0;
    case Role::other: return 1;
    case Role::head: return 2;
    case Role::embedding: return 3;
  }
  return 0;
}

// Index of the head that the widths tell, or the number of modules.
std::size_t find_head(std::span<const ModuleInfo> modules) {
  std::int64_t entries = 0;
  for (const ModuleInfo& m : modules) {
    if (m.role == Role::head) return modules.size();  // it is known
    if (m.role == Role::embedding) entries = std::max(entries, m.width);
  }
  std::size_t head = modules.size();
  for (std::size_t i = 0; i < modules.size(); ++i) {
    if (entries > 0 && modules[i].role == Role::other && modules[i].width == entries) head = i;
  }
  return head;
}

[[noreturn]] void throw_overlap(std::string_view a, std::string_view b) {
  throw Error(ErrorKind::invalid_argument, "parameters",
              fmt::format("'{}' and '{}' share part of their memory; tied weights must have "
                          "the same memory and shape, others must not overlap",
                          a, b));
}

// Merges entries with the same memory; throws if names or memory conflict.
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
    out.push_back({i, Treatment::rest, {}, false, {}});
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
  return treatment_names()[static_cast<std::size_t>(treatment)];
}

Route route_from_string(std::string_view text) {
  return static_cast<Route>(index_of(text, route_names(), "route"));
}

Treatment treatment_from_string(std::string_view text) {
  return static_cast<Treatment>(index_of(text, treatment_names(), "treatment"));
}

Route group_route(GroupRule rule, Route route, const Method& method) {
  if (rule == GroupRule::rest) return Route::rest;
  if (rule == GroupRule::matrix || !method.leaves_rest_to_adamw()) return Route::everything;
  return route;
}

// Greedy, remembering one '*': linear in practice, never exponential.
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
  Signs signs;
  for (const Parameter& p : parameters) signs.add(p.name, p.value.shape, p.role);
  Decider decider(routing, signs.choose(routing.route).route, /*ties_embed=*/true);
  for (RoutedParameter& entry : routed) {
    const Parameter& p = parameters[entry.index];
    if (p.experts.value_or(false) && p.value.shape.rank() < 3) {
      throw Error(ErrorKind::shape, "parameters",
                  fmt::format("parameter '{}' has shape {}, but is given as a batch of matrices, "
                              "which needs rank >= 3; leave `experts` unset",
                              p.name, to_string(p.value.shape)));
    }
    Candidate candidate{&p.value.shape, {p.name}, p.role, {}, p.experts};
    for (const std::size_t other : entry.tied) candidate.names.push_back(parameters[other].name);
    Decision decision = decider.decide(candidate);
    entry.treatment = decision.treatment;
    entry.reason = std::move(decision.reason);
    entry.experts = decision.experts;
  }
  decider.check_all_used();
  return routed;
}

RouteChoice choose_route(std::span<const ModuleInfo> modules,
                         std::span<const ModelParameter> parameters, Route route) {
  Signs signs;
  for (const ModuleInfo& module : modules) {
    signs.embedding = signs.embedding || module.role == Role::embedding;
    signs.convolution = signs.convolution || module.convolution;
  }
  for (const ModelParameter& p : parameters) {
    for (const ModelParameter::Place& place : p.places) {
      signs.add(place.name, p.shape, modules[place.module].role);
    }
  }
  return signs.choose(route);
}

std::vector<Decision> route_model(std::span<const ModuleInfo> modules,
                                  std::span<const ModelParameter> parameters,
                                  const Routing& routing) {
  const std::size_t head = find_head(modules);
  Decider decider(routing, choose_route(modules, parameters, routing.route).route,
                  /*ties_embed=*/false);
  std::vector<Decision> out;
  for (const ModelParameter& p : parameters) {
    Candidate candidate{&p.shape, {}, Role::by_name, {}};
    for (const ModelParameter::Place& place : p.places) {
      candidate.names.push_back(place.name);
      const ModuleInfo& module = modules[place.module];
      const Role role = place.module == head ? Role::head : module.role;
      if (candidate.type.empty()) candidate.type = module.type;
      if (module.convolution) candidate.experts = false;
      if (precedence(role) <= precedence(candidate.role)) continue;
      candidate.role = role;
      candidate.type = module.type;
    }
    out.push_back(decider.decide(candidate));
  }
  decider.check_all_used();
  return out;
}

double rest_share(std::span<const Decision> decisions, std::span<const std::int64_t> elements) {
  if (elements.size() != decisions.size()) {
    throw Error(ErrorKind::invalid_argument, "routing",
                fmt::format("{} decisions, but numbers of elements of {} parameters; give one each",
                            decisions.size(), elements.size()));
  }
  double rest = 0, all = 0;
  for (std::size_t i = 0; i < decisions.size(); ++i) {
    if (decisions[i].aside || decisions[i].treatment == Treatment::frozen) continue;
    const auto count = static_cast<double>(elements[i]);
    all += count;
    if (decisions[i].treatment == Treatment::rest) rest += count;
  }
  return all > 0 ? rest / all : 0;
}

std::string routing_table(std::span<const Parameter> parameters,
                          std::span<const RoutedParameter> routed, const Method& method) {
  std::size_t width = 9;
  for (const RoutedParameter& entry : routed) {
    width = std::max(width, parameters[entry.index].name.size());
  }
  const auto line = [&](const auto& name, const auto& shape, const auto& rule, const auto& lr,
                        const auto& decay, const auto& reason) {
    return fmt::format("{:<{}}  {:<20}  {:<7}  {:<10}  {:<12}  {}\n", name, width, shape, rule, lr,
                       decay, reason);
  };
  const auto number = [&](Treatment treatment, std::string_view own, std::string_view of_rest) {
    if (treatment == Treatment::frozen) return std::string("-");
    const auto value = method.number(treatment == Treatment::matrix ? own : of_rest);
    return value ? fmt::format("{:.4g}", *value) : std::string("-");
  };
  std::string out = line("parameter", "shape", "rule", "lr", "weight_decay", "reason");
  for (const RoutedParameter& entry : routed) {
    const Parameter& p = parameters[entry.index];
    std::string reason = entry.reason;
    for (const std::size_t other : entry.tied) {
      reason += fmt::format(", tied with '{}'", parameters[other].name);
    }
    out += line(p.name, to_string(p.value.shape), to_string(entry.treatment),
                number(entry.treatment, "lr", "lr_rest"),
                number(entry.treatment, "weight_decay", "weight_decay_rest"), reason);
  }
  return out;
}

}  // namespace rode
