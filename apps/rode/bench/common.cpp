// SPDX-License-Identifier: Apache-2.0
// What `rode bench step` shares between backends: its arguments, times, and descriptions of a step.
#include "bench/common.h"

#include <algorithm>

namespace rode::cli {

void step_as_asked(Optimizer& optimizer, const BenchArguments& arguments) {
  if (!arguments.phases) {
    optimizer.step();
    return;
  }
  optimizer.prepare();
  optimizer.compute();
  optimizer.apply();
}

double Times::quantile(double p) {
  std::ranges::sort(ms);
  const double at = p * static_cast<double>(ms.size() - 1);
  const auto low = static_cast<std::size_t>(at);
  const std::size_t high = std::min(low + 1, ms.size() - 1);
  return ms[low] + (at - static_cast<double>(low)) * (ms[high] - ms[low]);
}

Counts count_elements(const std::vector<Parameter>& parameters,
                      const std::vector<RoutedParameter>& routed) {
  Counts counts;
  for (const RoutedParameter& entry : routed) {
    const std::int64_t count = parameters[entry.index].value.numel();
    (entry.treatment == Treatment::matrix ? counts.managed : counts.delegated) += count;
  }
  return counts;
}

Json peer_shapes(const Model& model) {
  const std::vector<Parameter> parameters = model.parameters();
  Json list = Json::array();
  for (const RoutedParameter& entry : route_parameters(parameters, {model.route, {}})) {
    const Parameter& parameter = parameters[entry.index];
    list.push_back({{"name", parameter.name},
                    {"shape", parameter.value.shape.dims()},
                    {"treatment", to_string(entry.treatment)}});
  }
  return {{"shapes", model.name}, {"parameters", std::move(list)}};
}

void add_times(Json& json, Times& times) {
  const double low = times.quantile(0);
  const double high = times.quantile(1);
  json["median_ms"] = times.quantile(0.5);
  json["spread_ms"] = high - low;
  json["min_ms"] = low;
  json["q1_ms"] = times.quantile(0.25);
  json["q3_ms"] = times.quantile(0.75);
  json["max_ms"] = high;
}

Json options_json(const Method& method) {
  Json options;
  for (const OptionInfo& option : method.options()) options[option.key] = typed_value(option.value);
  return options;
}

}  // namespace rode::cli
