// SPDX-License-Identifier: Apache-2.0
// `rode step --backend reference`: the double-precision oracle on the tensors of a file.
//
// Everything stays in double from the first step to the last; only the output is rounded, to
// the parameter's type for weights and to F32 for state.
#include "reference/reference.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <utility>

#include <fmt/format.h>

#include "optim/splits.h"
#include "rode/error.h"
#include "step/finite.h"
#include "step/run.h"

namespace rode::cli {
namespace {

double element(const ConstTensorView& view, std::size_t i) {
  switch (view.dtype) {
    case DType::f32: return static_cast<const float*>(view.data)[i];
    case DType::f64: return static_cast<const double*>(view.data)[i];
    case DType::i64: return static_cast<double>(static_cast<const std::int64_t*>(view.data)[i]);
    case DType::i8: return static_cast<const std::int8_t*>(view.data)[i];
    case DType::bf16: {
      const std::uint32_t bits = static_cast<const std::uint16_t*>(view.data)[i];
      return std::bit_cast<float>(bits << 16);
    }
    default:
      throw Error(ErrorKind::dtype, "step",
                  fmt::format("the reference does not read {}", to_string(view.dtype)));
  }
}

reference::Tensor read(const ConstTensorView& view) {
  reference::Tensor tensor;
  tensor.shape.assign(view.shape.dims().begin(), view.shape.dims().end());
  tensor.data.resize(static_cast<std::size_t>(view.numel()));
  for (std::size_t i = 0; i < tensor.data.size(); ++i) tensor.data[i] = element(view, i);
  return tensor;
}

// Nearest bf16, ties to even, from double in one rounding: by way of float a tie could arise
// that the double does not have.
std::uint16_t to_bf16(double value) {
  const auto near = static_cast<float>(value);
  std::uint32_t bits = std::bit_cast<std::uint32_t>(near);
  if (std::isnan(value)) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  const bool tie = (bits & 0xffffu) == 0x8000u;
  if (tie && std::fabs(static_cast<double>(near)) > std::fabs(value)) --bits;
  if (tie && std::fabs(static_cast<double>(near)) < std::fabs(value)) ++bits;
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

void write(const reference::Tensor& tensor, const TensorView& out) {
  for (std::size_t i = 0; i < tensor.data.size(); ++i) {
    if (out.dtype == DType::bf16) {
      static_cast<std::uint16_t*>(out.data)[i] = to_bf16(tensor.data[i]);
    } else {
      static_cast<float*>(out.data)[i] = static_cast<float>(tensor.data[i]);
    }
  }
}

double squared_norm(const std::vector<double>& values) {
  double sum = 0;
  for (const double v : values) sum += v * v;
  return sum;
}

bool finite(const reference::Tensor& tensor) {
  return std::ranges::all_of(tensor.data, [](double v) { return std::isfinite(v); });
}

// Options for storing or multiplying in fewer bits have no counterpart in double precision;
// ignoring them would look like having tested them.
void refuse_narrow_options(const StepInput& input, const StepPlan& plan) {
  const bool bf16 = std::ranges::any_of(
      input.parameters(), [](const Parameter& p) { return p.value.dtype == DType::bf16; });
  const auto refuse = [&](std::string_view key, std::initializer_list<std::string_view> narrow) {
    const std::string value = option_value(plan.method, key);
    if (std::ranges::find(narrow, value) == narrow.end()) return;
    throw Error(
        ErrorKind::unsupported, "reference",
        fmt::format("option '{}' is '{}'; the double-precision reference does not support it; "
                    "set {}={} or use --backend cpu",
                    key, value, key, key.ends_with("rounding") ? "nearest" : "fp32"));
  };
  refuse("state_dtype", {"bf16"});
  if (option_value(plan.method, "state_dtype") == "int8") refuse("state_rounding", {"stochastic"});
  refuse("ns_dtype", {"bf16", "fp16", "fp8"});
  if (bf16) refuse("rounding", {"stochastic", "exact"});
}

// Results of an older step must not look like a skipped one's.
constexpr reference::Diagnostics kSkipped = {.gamma = 0};

// One parameter under way.
struct Item {
  std::size_t index = 0;
  const std::string* name = nullptr;
  reference::Treatment treatment;
  bool frozen = false;
  reference::Tensor value;
  reference::State state;
  std::vector<reference::Diagnostics> diagnostics;  // of the last step, RODE only
};

std::vector<Item> prepare(const StepInput& input, const StepPlan& plan,
                          const std::vector<RoutedParameter>& routed,
                          const reference::Settings& settings) {
  const std::string optimizer(plan.method.name());
  const Splits splits(optimizer, option_value(plan.method, "splits"));
  std::vector<std::string> names;
  for (const RoutedParameter& entry : routed) {
    names.push_back(input.parameters()[entry.index].name);
  }
  if (const std::string pattern = splits.unmatched(names); !pattern.empty()) {
    throw Error(ErrorKind::invalid_argument, optimizer,
                fmt::format("option 'splits': pattern '{}' matches no parameter", pattern));
  }
  std::vector<Item> items;
  for (const RoutedParameter& entry : routed) {
    const Parameter& parameter = input.parameters()[entry.index];
    Item item;
    item.index = entry.index;
    item.name = &parameter.name;
    item.frozen = entry.treatment == Treatment::frozen;
    item.treatment.matrix = entry.treatment == Treatment::matrix;
    item.treatment.in_out = parameter.layout == Layout::in_out;
    const Shape& shape = parameter.value.shape;
    item.treatment.experts = entry.experts;
    if (item.treatment.matrix && shape.rank() >= 2) {
      const int fan_out = item.treatment.in_out ? shape.rank() - 1 : entry.experts ? 1 : 0;
      item.treatment.blocks = splits.blocks(parameter.name, shape[fan_out]);
    }
    item.value = read(parameter.value);
    if (!item.frozen) {
      item.state = reference::initial_state(optimizer, settings, item.treatment, item.value);
    }
    if (item.treatment.matrix && optimizer.starts_with("rode")) {
      const auto experts = static_cast<std::size_t>(entry.experts ? shape[0] : 1);
      item.diagnostics.assign(experts * item.treatment.blocks.size(), kSkipped);
    }
    items.push_back(std::move(item));
  }
  std::vector<reference::Started> matrices;
  for (Item& item : items) {
    if (item.frozen || !item.treatment.matrix) continue;
    matrices.push_back({&item.value, item.treatment, &item.state});
  }
  reference::set_starts(settings, matrices);
  return items;
}

// As the engine's files have it.
DType state_dtype(const Item& item, const std::string& key) {
  if (key == "step") return DType::i64;
  return item.state.contains(key + "_scale") ? DType::i8 : DType::f32;
}

std::string state_name(const Item& item, const std::string& key) {
  return fmt::format("state.{}.{}", *item.name, key);
}

void load_state(std::vector<Item>& items, const StepInput& input) {
  std::vector<std::string> expected;
  for (const Item& item : items) {
    for (const auto& [key, tensor] : item.state) expected.push_back(state_name(item, key));
  }
  input.check_state_names(expected);
  for (Item& item : items) {
    for (auto& [key, tensor] : item.state) {
      const std::string name = state_name(item, key);
      if (!input.file().contains(name)) {
        if (input.has_state_of(*item.name)) {
          fmt::print(stderr,
                     "rode: note: '{}' is not in the file and starts as at the first step\n",
                     on_terminal(name));
        }
        continue;
      }
      const ConstTensorView saved = input.file().tensor(name);
      const bool int8 = state_dtype(item, key) == DType::i8;
      if (int8 != (saved.dtype == DType::i8)) {
        throw Error(ErrorKind::state_mismatch, "step",
                    fmt::format("'{}' is {}; expected {}, as these options store it: the reference "
                                "does not convert; use --backend cpu",
                                name, to_string(saved.dtype), int8 ? "I8" : "F32"));
      }
      reference::Tensor loaded = read(saved);
      if (loaded.shape != tensor.shape) {
        throw Error(ErrorKind::state_mismatch, "step",
                    fmt::format("'{}' has shape {}; expected {} for parameter '{}'; use the "
                                "state this parameter was saved with",
                                name, to_string(Shape(loaded.shape)),
                                to_string(Shape(tensor.shape)), *item.name));
      }
      tensor = std::move(loaded);
    }
  }
}

// The gradient of step k, or nothing where the parameter is to be passed over.
bool usable_gradient(const StepInput& input, const StepPlan& plan, const Item& item, std::int64_t k,
                     reference::Tensor& gradient) {
  const ConstTensorView view = input.gradient(item.index, k);
  if (view.data == nullptr) return false;
  gradient = read(view);
  if (finite(gradient)) return true;
  if (plan.engine.on_non_finite == OnBadGradient::skip) return false;
  throw Error(ErrorKind::non_finite, "step",
              fmt::format("gradient of parameter '{}' holds NaN or Inf in step {}; expected finite "
                          "values; nothing was changed; repair it, or set on_non_finite to skip",
                          *item.name, k));
}

// One step of every parameter. The squared norms are summed as the engine defines them: skipped
// parameters have weights, and no update.
void step_all(std::vector<Item>& items, const StepInput& input, const StepPlan& plan,
              const reference::Settings& settings, std::int64_t k, StepOutcome& outcome) {
  const double multiplier = plan.schedule.multiplier(input.steps_before() + k);
  const std::string optimizer(plan.method.name());
  double weights = 0;
  double update = 0;
  double gradients = 0;
  for (Item& item : items) {
    if (item.frozen) continue;
    const std::vector<double> before = item.value.data;
    weights += squared_norm(before);
    reference::Tensor gradient;
    if (!usable_gradient(input, plan, item, k, gradient)) {
      ++outcome.skipped[*item.name];
      for (reference::Diagnostics& block : item.diagnostics) block = kSkipped;
      continue;
    }
    item.diagnostics = reference::step(optimizer, settings, item.treatment, item.value, gradient,
                                       item.state, multiplier);
    if (!finite(item.value)) throw overflow(*item.name, "a weight is not finite", plan, k + 1);
    gradients += squared_norm(gradient.data);
    for (std::size_t i = 0; i < before.size(); ++i) {
      update += (item.value.data[i] - before[i]) * (item.value.data[i] - before[i]);
    }
  }
  GlobalDiagnostics& global = outcome.global;
  global.weight_norm = std::sqrt(weights);
  global.update_norm = std::sqrt(update);
  global.update_ratio = global.update_norm / (global.weight_norm + 1e-12);
  global.gradient_norm = std::sqrt(gradients);
}

using Field = std::pair<const char*, double reference::Diagnostics::*>;
constexpr std::array<Field, 7> kFields = {{{"rho", &reference::Diagnostics::rho},
                                           {"rho_next", &reference::Diagnostics::rho_next},
                                           {"s", &reference::Diagnostics::s},
                                           {"q", &reference::Diagnostics::q},
                                           {"theta", &reference::Diagnostics::theta},
                                           {"gamma", &reference::Diagnostics::gamma},
                                           {"m_norm", &reference::Diagnostics::m_norm}}};

void add_item(StepOutput& output, const Item& item) {
  for (const auto& [key, tensor] : item.state) {
    const Shape shape{std::span<const std::int64_t>(tensor.shape)};
    const DType dtype = state_dtype(item, key);
    if (dtype == DType::i8) {
      Buffer& buffer = output.owned.emplace_back(tensor.data.size());
      std::ranges::transform(tensor.data, static_cast<std::int8_t*>(buffer.data()),
                             [](double v) { return static_cast<std::int8_t>(v); });
      output.entries.push_back({state_name(item, key), {buffer.data(), shape, dtype}});
    } else if (dtype == DType::i64) {
      Buffer& buffer = output.owned.emplace_back(sizeof(std::int64_t));
      const auto count = static_cast<std::int64_t>(tensor.data.at(0));
      std::memcpy(buffer.data(), &count, sizeof(count));
      output.entries.push_back({state_name(item, key), {buffer.data(), shape, DType::i64}});
    } else {
      output.add_floats(state_name(item, key), shape, tensor.data);
    }
  }
  if (item.diagnostics.empty()) return;
  for (const auto& [key, member] : kFields) {
    std::vector<double> values;
    values.reserve(item.diagnostics.size());
    for (const auto& block : item.diagnostics) values.push_back(block.*member);
    output.add_floats(fmt::format("diag.{}.{}", *item.name, key),
                      {static_cast<std::int64_t>(values.size())}, values);
  }
}

}  // namespace

StepOutcome step_with_reference(const StepInput& input, const StepPlan& plan,
                                const Finish& finish) {
  refuse_narrow_options(input, plan);
  reference::Settings settings;
  for (const OptionInfo& option : plan.method.options()) settings[option.key] = option.value;
  const std::vector<RoutedParameter> routed = input.routed(plan.method, plan.routing);
  if (plan.engine.on_missing == OnBadGradient::refuse) {
    require_gradients(input, routed, plan.steps);
  }
  std::vector<Item> items = prepare(input, plan, routed, settings);
  load_state(items, input);
  StepOutcome outcome;
  for (std::int64_t k = 0; k < plan.steps; ++k) {
    step_all(items, input, plan, settings, k, outcome);
  }

  StepOutput output;
  output.metadata["rode.step"] = std::to_string(input.steps_before() + plan.steps);
  for (const Item& item : items) {
    const Parameter& parameter = input.parameters()[item.index];
    if (!item.frozen) write(item.value, parameter.value);
    output.entries.push_back({"param." + parameter.name, parameter.value});
    add_item(output, item);
  }
  for (const TensorEntry& entry : output.entries) {
    if (entry.name.starts_with("state.")) outcome.state_bytes += entry.view.bytes();
  }
  check_result(input, plan, output, plan.steps);
  finish(output);
  return outcome;
}

}  // namespace rode::cli
