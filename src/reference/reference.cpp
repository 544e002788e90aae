// SPDX-License-Identifier: Apache-2.0
// Selects the rule by the optimizer's name and the parameter's treatment; state that is stored in
// 8 bits is full precision inside a step.
#include "reference/reference.h"

#include <numeric>

#include "reference/int8_state.h"
#include "reference/rules.h"
#include "reference/settings.h"

namespace rode::reference {
namespace {

// Optimizers with one rule for all shapes.
struct SameRule {
  State (*state)(const Tensor& parameter);
  void (*step)(const Settings& settings, Rates rates, Tensor& parameter, const Tensor& gradient,
               State& state);
};
const std::map<std::string, SameRule> kSameRule = {
    {"adafactor", {adafactor_state, adafactor_step}},
    {"adamw", {adamw_state, adamw_step}},
    {"ademamix", {ademamix_state, ademamix_step}},
    {"lion", {lion_state, lion_step}},
    {"sgd", {sgd_state, sgd_step}},
};

// Optimizers with a rule for matrices; AdamW updates the rest. The names of a family differ only in
// their settings.
enum class MatrixRule { rode, muon, muown, soap, mars_m };
const std::map<std::string, MatrixRule> kMatrixRules = {
    {"rode", MatrixRule::rode},          {"rode-snr", MatrixRule::rode},
    {"rode-fixed", MatrixRule::rode},    {"rode-paper", MatrixRule::rode},
    {"muon", MatrixRule::muon},          {"muon-rms", MatrixRule::muon},
    {"muon-normproj", MatrixRule::muon}, {"soap", MatrixRule::soap},
    {"mars-m", MatrixRule::mars_m},      {"muown", MatrixRule::muown},
};

MatrixRule matrix_rule(const std::string& optimizer) {
  const auto found = kMatrixRules.find(optimizer);
  if (found == kMatrixRules.end())
    throw Error(ErrorKind::invalid_argument, "reference",
                "optimizer '" + optimizer + "' is unknown; expected a name of the optimizer table");
  return found->second;
}

Rates rates_of(const Settings& settings, const Treatment& treatment, double multiplier) {
  if (treatment.matrix)
    return {number(settings, "lr") * multiplier, number_or(settings, "weight_decay", 0)};
  // An unset lr_rest means lr.
  const bool shared = !settings.contains("lr_rest");
  return {number(settings, shared ? "lr" : "lr_rest") * multiplier,
          number(settings, "weight_decay_rest")};
}

void check_shape(const Tensor& tensor, const std::string& what) {
  const std::int64_t elements = std::accumulate(tensor.shape.begin(), tensor.shape.end(),
                                                std::int64_t{1}, std::multiplies<>());
  if (static_cast<std::size_t>(elements) != tensor.data.size())
    throw Error(ErrorKind::shape, "reference",
                "the " + what + " has " + std::to_string(tensor.data.size()) +
                    " elements; expected " + std::to_string(elements) + " from its shape");
}

State full_state(const std::string& optimizer, const Settings& settings, const Treatment& treatment,
                 const Tensor& parameter) {
  const auto same = kSameRule.find(optimizer);
  if (same != kSameRule.end()) return same->second.state(parameter);
  const MatrixRule rule = matrix_rule(optimizer);
  if (!treatment.matrix) return adamw_state(parameter);
  switch (rule) {
    case MatrixRule::rode: return rode_state(settings, treatment, parameter);
    case MatrixRule::muon: return muon_state(settings, treatment, parameter);
    case MatrixRule::muown: return muown_state(treatment, parameter);
    case MatrixRule::soap: return soap_state(settings, parameter);
    case MatrixRule::mars_m: break;
  }
  return mars_m_state(settings, treatment, parameter);
}

std::vector<Diagnostics> full_step(const std::string& optimizer, const Settings& settings,
                                   const Treatment& treatment, Tensor& parameter,
                                   const Tensor& gradient, State& state, double multiplier) {
  const Rates rates = rates_of(settings, treatment, multiplier);
  const auto same = kSameRule.find(optimizer);
  if (same != kSameRule.end()) {
    same->second.step(settings, rates, parameter, gradient, state);
    return {};
  }
  const MatrixRule rule = matrix_rule(optimizer);
  if (!treatment.matrix) {
    adamw_rest_step(settings, rates, parameter, gradient, state);
    return {};
  }
  switch (rule) {
    case MatrixRule::rode:
      return rode_step(settings, treatment, parameter, gradient, state, multiplier);
    case MatrixRule::muon: muon_step(settings, treatment, rates, parameter, gradient, state); break;
    case MatrixRule::muown:
      muown_step(settings, treatment, rates, parameter, gradient, state, multiplier);
      break;
    case MatrixRule::soap: soap_step(settings, rates, parameter, gradient, state); break;
    case MatrixRule::mars_m:
      mars_m_step(settings, treatment, rates, parameter, gradient, state);
      break;
  }
  return {};
}

// The tensor of one expert, of `count` that lie one after the other.
Tensor expert_of(const Tensor& all, std::int64_t index, std::int64_t count) {
  const std::int64_t size = static_cast<std::int64_t>(all.data.size()) / count;
  Tensor one{{}, {all.data.begin() + index * size, all.data.begin() + (index + 1) * size}};
  one.shape.assign(all.shape.begin() + 1, all.shape.end());
  return one;
}

void append_expert(const std::string& key, const Tensor& one, std::int64_t index, Tensor& all) {
  const bool number = one.shape == std::vector<std::int64_t>{1};
  const bool stacked = !number && !key.ends_with("_scale");
  if (index == 0) {
    all.shape = one.shape;
    if (stacked) all.shape.insert(all.shape.begin(), 0);
    if (!stacked) all.shape[0] = 0;
  }
  all.shape[0] += stacked ? 1 : one.shape[0];
  all.data.insert(all.data.end(), one.data.begin(), one.data.end());
}

Treatment of_one(const Treatment& treatment) {
  Treatment one = treatment;
  one.experts = false;
  return one;
}

bool is_batch(const Treatment& treatment) { return treatment.matrix && treatment.experts; }

}  // namespace

State initial_state(const std::string& optimizer, const Settings& settings,
                    const Treatment& treatment, const Tensor& parameter) {
  check_shape(parameter, "parameter");
  if (is_batch(treatment) && !kSameRule.contains(optimizer)) {
    State all;
    for (std::int64_t e = 0; e < parameter.shape[0]; ++e) {
      const Tensor one = expert_of(parameter, e, parameter.shape[0]);
      for (const auto& [key, tensor] : initial_state(optimizer, settings, of_one(treatment), one)) {
        append_expert(key, tensor, e, all[key]);
      }
    }
    return all;
  }
  State state = full_state(optimizer, settings, treatment, parameter);
  if (has_int8_state(settings)) quantize(state, treatment);
  return state;
}

std::vector<Diagnostics> step(const std::string& optimizer, const Settings& settings,
                              const Treatment& treatment, Tensor& parameter, const Tensor& gradient,
                              State& state, double multiplier) {
  check_shape(parameter, "parameter");
  check_shape(gradient, "gradient");
  if (gradient.shape != parameter.shape)
    throw Error(ErrorKind::shape, "reference", "the gradient's shape differs from the parameter's");
  if (is_batch(treatment) && !kSameRule.contains(optimizer)) {
    const std::int64_t count = parameter.shape[0];
    Tensor stepped{parameter.shape, {}};
    State all;
    std::vector<Diagnostics> diagnostics;
    for (std::int64_t e = 0; e < count; ++e) {
      Tensor one = expert_of(parameter, e, count);
      State own = initial_state(optimizer, settings, of_one(treatment), one);  // for the shapes
      for (auto& [key, tensor] : own) tensor.data = expert_of(state.at(key), e, count).data;
      for (const Diagnostics& d : step(optimizer, settings, of_one(treatment), one,
                                       expert_of(gradient, e, count), own, multiplier)) {
        diagnostics.push_back(d);
      }
      stepped.data.insert(stepped.data.end(), one.data.begin(), one.data.end());
      for (const auto& [key, tensor] : own) append_expert(key, tensor, e, all[key]);
    }
    parameter = stepped;
    state = all;
    return diagnostics;
  }
  const bool int8 = has_int8_state(settings);
  if (int8) dequantize(state, treatment);
  auto diagnostics =
      full_step(optimizer, settings, treatment, parameter, gradient, state, multiplier);
  if (int8) quantize(state, treatment);
  return diagnostics;
}

}  // namespace rode::reference
