// SPDX-License-Identifier: Apache-2.0
// Chooses the rule by the optimizer's name and by how the parameter is treated.
#include "reference/reference.h"

#include <numeric>

#include "reference/rules.h"
#include "reference/settings.h"

namespace rode::reference {
namespace {

enum class Rule { rode, muon, soap, mars_m, ademamix, adamw, adafactor, sgd, rest_adamw };

// The variants of a family differ in their settings only, not in their rule.
Rule rule_of(const std::string& optimizer, const Treatment& treatment) {
  static const std::map<std::string, Rule> rules = {
      {"rode", Rule::rode},   {"rode-snr", Rule::rode},       {"rode-fixed", Rule::rode},
      {"muon", Rule::muon},   {"muon-rms", Rule::muon},       {"muon-normproj", Rule::muon},
      {"soap", Rule::soap},   {"mars-m", Rule::mars_m},       {"ademamix", Rule::ademamix},
      {"adamw", Rule::adamw}, {"adafactor", Rule::adafactor}, {"sgd", Rule::sgd}};
  const auto found = rules.find(optimizer);
  if (found == rules.end())
    throw Error(ErrorKind::invalid_argument, "reference",
                "optimizer '" + optimizer + "' is unknown; expected a name of the optimizer table");
  switch (found->second) {
    case Rule::rode:
    case Rule::muon:
    case Rule::soap:
    case Rule::mars_m: return treatment.matrix ? found->second : Rule::rest_adamw;
    default: return found->second;  // the rest follows the same rule
  }
}

Rates rates_of(Rule rule, const Settings& settings, const Treatment& treatment, double multiplier) {
  if (rule == Rule::rode) return {};  // reads its two rates itself, has no decay
  if (treatment.matrix)
    return {number(settings, "lr") * multiplier, number(settings, "weight_decay")};
  const bool shared = rule == Rule::adafactor && !settings.contains("lr_rest");
  return {number(settings, shared ? "lr" : "lr_rest") * multiplier,
          number(settings, "weight_decay_rest")};
}

AdamConstants adam_constants(const Settings& settings, const std::string& suffix) {
  const std::vector<double> betas = numbers(settings, "betas" + suffix, 2);
  const bool maximize = suffix.empty() && flag_or(settings, "maximize", false);
  return {betas[0], betas[1], number(settings, "eps" + suffix), maximize};
}

void check_shape(const Tensor& tensor, const std::string& what) {
  const std::int64_t elements = std::accumulate(tensor.shape.begin(), tensor.shape.end(),
                                                std::int64_t{1}, std::multiplies<>());
  if (static_cast<std::size_t>(elements) != tensor.data.size())
    throw Error(ErrorKind::shape, "reference",
                "the " + what + " has " + std::to_string(tensor.data.size()) +
                    " elements; expected " + std::to_string(elements) + " by its shape");
}

}  // namespace

State initial_state(const std::string& optimizer, const Settings& settings,
                    const Treatment& treatment, const Tensor& parameter) {
  check_shape(parameter, "parameter");
  switch (rule_of(optimizer, treatment)) {
    case Rule::rode: return rode_state(settings, treatment, parameter);
    case Rule::muon: return muon_state(settings, treatment, parameter);
    case Rule::soap: return soap_state(settings, parameter);
    case Rule::mars_m: return mars_m_state(treatment, parameter);
    case Rule::ademamix: return ademamix_state(parameter);
    case Rule::adafactor: return adafactor_state(parameter);
    case Rule::sgd: return sgd_state(parameter);
    case Rule::adamw:
    case Rule::rest_adamw: break;
  }
  return adamw_state(parameter);
}

std::vector<Diagnostics> step(const std::string& optimizer, const Settings& settings,
                              const Treatment& treatment, Tensor& parameter, const Tensor& gradient,
                              State& state, double multiplier) {
  check_shape(parameter, "parameter");
  check_shape(gradient, "gradient");
  if (gradient.shape != parameter.shape)
    throw Error(ErrorKind::shape, "reference", "the gradient's shape is not the parameter's");
  const Rule rule = rule_of(optimizer, treatment);
  const Rates rates = rates_of(rule, settings, treatment, multiplier);
  switch (rule) {
    case Rule::rode: return rode_step(settings, treatment, parameter, gradient, state, multiplier);
    case Rule::muon: muon_step(settings, treatment, rates, parameter, gradient, state); break;
    case Rule::soap: soap_step(settings, rates, parameter, gradient, state); break;
    case Rule::mars_m: mars_m_step(settings, treatment, rates, parameter, gradient, state); break;
    case Rule::ademamix: ademamix_step(settings, rates, parameter, gradient, state); break;
    case Rule::adafactor: adafactor_step(settings, rates, parameter, gradient, state); break;
    case Rule::sgd: sgd_step(settings, rates, parameter, gradient, state); break;
    case Rule::adamw:
      adamw_step(adam_constants(settings, ""), rates, parameter, gradient, state);
      break;
    case Rule::rest_adamw:
      adamw_step(adam_constants(settings, "_rest"), rates, parameter, gradient, state);
      break;
  }
  return {};
}

}  // namespace rode::reference
