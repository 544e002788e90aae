// SPDX-License-Identifier: Apache-2.0
// Finds the first element that is not finite, and names it.
#include "step/finite.h"

#include <bit>
#include <cmath>
#include <optional>
#include <set>

#include <fmt/format.h>

namespace rode::cli {
namespace {

struct Found {
  std::int64_t element;
  std::string_view value;  // "NaN" or "Inf"
};

double element(const ConstTensorView& view, std::int64_t i) {
  switch (view.dtype) {
    case DType::f32: return static_cast<double>(static_cast<const float*>(view.data)[i]);
    case DType::f64: return static_cast<const double*>(view.data)[i];
    case DType::bf16: {
      const std::uint32_t bits = static_cast<const std::uint16_t*>(view.data)[i];
      return static_cast<double>(std::bit_cast<float>(bits << 16));
    }
    default: return 0;  // whole numbers
  }
}

std::optional<Found> find(const ConstTensorView& view) {
  for (std::int64_t i = 0; i < view.numel(); ++i) {
    const double x = element(view, i);
    if (!std::isfinite(x)) return Found{i, std::isnan(x) ? "NaN" : "Inf"};
  }
  return {};
}

// "weight 3", "element 3 of 'state.w.momentum'"
std::string place(const std::string& tensor, const Found& found) {
  if (tensor.starts_with("param.")) return fmt::format("weight {}", found.element);
  return fmt::format("element {} of '{}'", found.element, tensor);
}

// The parameter of "param.<name>", "state.<name>.<key>" or "diag.<name>.<key>".
std::string parameter_of(const std::string& tensor) {
  const std::size_t from = tensor.find('.') + 1;
  if (tensor.starts_with("param.")) return tensor.substr(from);
  return tensor.substr(from, tensor.rfind('.') - from);
}

std::set<std::string> frozen(const StepInput& input, const Routing& routing) {
  std::set<std::string> out;
  for (const RoutedParameter& entry : route_parameters(input.parameters(), routing)) {
    if (entry.treatment != Treatment::frozen) continue;
    out.insert("param." + input.parameters()[entry.index].name);
  }
  return out;
}

}  // namespace

void check_input(const StepInput& input, const Routing& routing) {
  const std::set<std::string> passed_over = frozen(input, routing);
  for (const std::string& tensor : input.file().names()) {
    const bool state = tensor.starts_with("state.");
    if (!state && (!tensor.starts_with("param.") || passed_over.contains(tensor))) continue;
    const auto found = find(input.file().tensor(tensor));
    if (!found) continue;
    const std::string owner = state ? *input.owner_of_state(tensor) : parameter_of(tensor);
    throw Error(
        ErrorKind::file, "step",
        fmt::format("parameter '{}': {} is {} in the input; expected finite {}; nothing "
                    "was written; repair the file, or use an earlier one",
                    owner, place(tensor, *found), found->value, state ? "state" : "weights"));
  }
}

void check_result(const StepInput& input, const StepPlan& plan, const StepOutput& output,
                  std::int64_t done) {
  const std::set<std::string> passed_over = frozen(input, plan.routing);
  for (const TensorEntry& entry : output.entries) {
    if (passed_over.contains(entry.name)) continue;
    const auto found = find(entry.view);
    if (!found) continue;
    const bool state = entry.name.starts_with("state.");
    throw overflow(state ? *input.owner_of_state(entry.name) : parameter_of(entry.name),
                   fmt::format("{} is {}", place(entry.name, *found), found->value), plan, done);
  }
}

Error overflow(std::string_view parameter, std::string_view what, const StepPlan& plan,
               std::int64_t done) {
  return Error::after_change(
      ErrorKind::non_finite, "step",
      fmt::format("parameter '{}': {} after step {} of {}: the step overflows; nothing was "
                  "written; lower the rates, or scale the gradients",
                  parameter, what, done, plan.steps));
}

}  // namespace rode::cli
