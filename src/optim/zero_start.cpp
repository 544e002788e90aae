// SPDX-License-Identifier: Apache-2.0
// Which matrices began at zero, and what becomes of them.
#include "optim/zero_start.h"

#include <algorithm>
#include <cmath>
#include <map>

#include <fmt/format.h>

#include "optim/optimizer_impl.h"

namespace rode {
namespace {

constexpr std::string_view kStartReason = ", zero start";

// The mean of the two in the middle where their count is even.
double median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

// Where a parameter's state has its starts; its size where it has none.
std::size_t start_place(const ParameterState& state) {
  const auto found = std::ranges::find(state.specs(), kStartNorm, &StateSpec::key);
  return static_cast<std::size_t>(found - state.specs().begin());
}

bool has_starts(const ParameterState& state) { return start_place(state) < state.specs().size(); }

}  // namespace

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

// All RODE matrices count, also of groups whose own zeros are treated otherwise; each block of a
// split one and each expert by itself.
void Optimizer::Impl::store_start_norms() {
  const auto lacks = [](const auto& state) {
    return has_starts(*state) && !state->kept(kStartNorm);
  };
  if (std::ranges::none_of(states, lacks)) return;
  std::vector<double> others;
  std::unordered_set<const JobBase*> zero;
  for (const RodeJob& job : jobs.rode) {
    const auto count = static_cast<double>(job.geometry.numel());
    if (count == 0) continue;
    const double norm = std::sqrt(backend->squared_norm(job.weight, job.geometry));
    if (norm <= job.constants->eps) {
      zero.insert(&job);
    } else if (std::isfinite(norm)) {  // others are the step's to refuse
      others.push_back(norm / std::sqrt(count));
    }
  }
  const auto start_norm = [&](const RodeJob& job) {
    if (!zero.contains(&job)) return 0.0F;
    const double rms =
        others.empty() ? 1 / std::sqrt(static_cast<double>(job.fan_in)) : median(others);
    return static_cast<float>(std::sqrt(static_cast<double>(job.geometry.numel())) * rms);
  };
  std::map<std::string_view, std::vector<float>> norms;
  for (const RodeJob& job : jobs.rode) {
    norms[entries[job.parameter].parameter.name].push_back(start_norm(job));
  }
  for (const auto& state : states) {
    if (!lacks(state)) continue;
    const std::size_t at = start_place(*state);
    state->upload(at, {norms[state->parameter()].data(), state->specs()[at].shape, DType::f32});
  }
}

void Optimizer::Impl::tell_starts() {
  std::map<std::string_view, bool> began;
  for (const auto& state : states) {
    if (!has_starts(*state)) continue;
    const ConstTensorView norms = state->view(start_place(*state));
    const auto* values = static_cast<const float*>(norms.data);
    began[state->parameter()] =
        std::any_of(values, values + norms.numel(), [](float norm) { return norm > 0; });
  }
  for (Group& group : groups) {
    for (RoutedParameter& entry : group.routed) {
      const auto known = began.find(entries[group.first + entry.index].parameter.name);
      if (known == began.end()) continue;
      std::string& reason = entry.reason;
      if (reason.ends_with(kStartReason)) reason.resize(reason.size() - kStartReason.size());
      if (known->second) reason += kStartReason;
    }
  }
}

}  // namespace rode
