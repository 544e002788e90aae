// SPDX-License-Identifier: Apache-2.0
// The input of `rode step`: parameters, their gradients by step, and state, checked by name.
#include "step/input.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>

#include <fmt/format.h>

#include "core/nearest.h"
#include "optim/zero_start.h"
#include "rode/error.h"
#include "rules/rounding.h"

namespace rode::cli {
namespace {

constexpr std::string_view kOperation = "step";

// So far from overflow that no number of further steps reaches it.
constexpr std::int64_t kMostStepsBefore = std::int64_t{1} << 62;

double norm_of(const TensorView& values) {
  double sum = 0;
  for (std::int64_t i = 0; i < values.numel(); ++i) {
    const double x = values.dtype == DType::f32
                         ? static_cast<const float*>(values.data)[i]
                         : rules::bf16_to_float(static_cast<const std::uint16_t*>(values.data)[i]);
    sum += x * x;
  }
  return std::sqrt(sum);
}

bool steppable(DType dtype) { return dtype == DType::f32 || dtype == DType::bf16; }

// A whole number >= 0 without sign or leading zero; -1 where the text is none.
std::int64_t parse_count(std::string_view text) {
  std::int64_t value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool canonical = !text.empty() && (text.size() == 1 || text.front() != '0');
  if (error != std::errc() || end != text.data() + text.size() || !canonical) return -1;
  return value;
}

}  // namespace

StepInput::StepInput(const std::filesystem::path& path)
    : path_(path.string()), file_(SafetensorsFile::open(path)) {
  read_parameters();
  gradients_.resize(parameters_.size());
  for (const std::string& tensor : file_.names()) {
    if (tensor.starts_with("param.")) continue;
    if (tensor.starts_with("grad.") || tensor.starts_with("grad@")) {
      read_gradient(tensor);
    } else if (tensor.starts_with("state.")) {
      if (owner_of_state(tensor) == nullptr) refuse_name(tensor, "belongs to no parameter");
      state_names_.push_back(tensor);
    } else if (!tensor.starts_with("diag.")) {  // an earlier output's: nothing to read
      refuse_name(tensor, "is not a name of this format");
    }
  }
  for (Parameter& p : parameters_) p.zero_start = zero_start_in(file_, p.name);
  read_metadata();
}

void StepInput::read_parameters() {
  for (const std::string& tensor : file_.names()) {
    if (!tensor.starts_with("param.")) continue;
    Parameter parameter;
    parameter.name = tensor.substr(std::string_view("param.").size());
    if (parameter.name.empty()) refuse_name(tensor, "has no parameter name");
    parameters_.push_back(std::move(parameter));
  }
  if (parameters_.empty()) {
    throw Error(
        ErrorKind::file, kOperation,
        fmt::format("file '{}' holds no 'param.<name>'; there is nothing to update; add the "
                    "weights under that name",
                    path_));
  }
  // Results must not depend on the order in which a writer laid out the file.
  std::ranges::sort(parameters_, {}, &Parameter::name);
  for (Parameter& parameter : parameters_) {
    const ConstTensorView source = file_.tensor("param." + parameter.name);
    if (!steppable(source.dtype)) {
      throw Error(ErrorKind::dtype, kOperation,
                  fmt::format("parameter '{}' is {}; expected F32 or BF16; convert it",
                              parameter.name, to_string(source.dtype)));
    }
    Buffer& copy = weights_.emplace_back(source.bytes());
    if (source.bytes() > 0) std::memcpy(copy.data(), source.data, source.bytes());
    parameter.value = {copy.data(), source.shape, source.dtype};
    parameter.grad = {nullptr, source.shape, source.dtype};
  }
}

void StepInput::read_gradient(const std::string& tensor) {
  const std::size_t dot = tensor.find('.');
  const std::string_view text = tensor;
  const bool every = text.starts_with("grad.");
  const std::int64_t k =
      every ? 0 : parse_count(text.substr(5, (dot == std::string::npos ? 5 : dot) - 5));
  if (dot == std::string::npos || k < 0) {
    refuse_name(tensor, "is neither 'grad.<name>' nor 'grad@<k>.<name>'");
  }
  const std::size_t index = index_of(text.substr(dot + 1));
  if (index == parameters_.size()) refuse_name(tensor, "belongs to no parameter");

  const Parameter& parameter = parameters_[index];
  const ConstTensorView view = file_.tensor(tensor);
  if (!steppable(view.dtype)) {
    throw Error(ErrorKind::dtype, kOperation,
                fmt::format("gradient '{}' of parameter '{}' is {}; expected F32 or BF16; "
                            "convert it",
                            tensor, parameter.name, to_string(view.dtype)));
  }
  if (view.shape != parameter.value.shape) {
    throw Error(ErrorKind::shape, kOperation,
                fmt::format("gradient '{}' has shape {}; expected {} as parameter '{}'; write "
                            "the gradient in the parameter's shape",
                            tensor, to_string(view.shape), to_string(parameter.value.shape),
                            parameter.name));
  }
  Gradients& gradients = gradients_[index];
  (every ? gradients.every : gradients.by_step[k]) = view;
  if (gradients.every.data != nullptr && !gradients.by_step.empty()) {
    throw Error(ErrorKind::invalid_argument, kOperation,
                fmt::format("parameter '{0}' has both 'grad.{0}' and 'grad@<k>.{0}'; expected "
                            "one kind; remove the other",
                            parameter.name));
  }
}

void StepInput::read_metadata() {
  const auto entry = file_.metadata().find("rode.step");
  if (entry == file_.metadata().end()) return;
  steps_before_ = parse_count(entry->second);
  if (steps_before_ < 0 || steps_before_ > kMostStepsBefore) {
    throw Error(ErrorKind::file, kOperation,
                fmt::format("file '{}' has metadata rode.step '{}'; expected a whole number up to "
                            "2^62; remove or correct it",
                            path_, entry->second));
  }
}

void StepInput::refuse_name(const std::string& tensor, std::string_view why) const {
  std::vector<std::string> known;
  for (const Parameter& parameter : parameters_) {
    known.push_back("param." + parameter.name);
    known.push_back("grad." + parameter.name);
    known.push_back("grad@0." + parameter.name);
    if (tensor.starts_with("state.")) {
      known.push_back("state." + parameter.name + tensor.substr(tensor.rfind('.')));
    }
  }
  const std::string near = nearest(tensor, known);
  throw Error(
      ErrorKind::invalid_argument, kOperation,
      fmt::format("tensor '{}' of file '{}' {}{}; rename or remove it (names: param.<name>, "
                  "grad.<name>, grad@<k>.<name>, state.<name>.<key>)",
                  tensor, path_, why, near.empty() ? "" : fmt::format("; nearest is '{}'", near)));
}

std::size_t StepInput::index_of(std::string_view parameter) const {
  const auto at = std::ranges::lower_bound(
      parameters_, parameter, {}, [](const Parameter& p) { return std::string_view(p.name); });
  if (at == parameters_.end() || at->name != parameter) return parameters_.size();
  return static_cast<std::size_t>(at - parameters_.begin());
}

void StepInput::set_layouts(const std::vector<std::string>& layouts) {
  std::vector<bool> decided(parameters_.size(), false);
  for (const std::string& text : layouts) {
    const auto [pattern, value] = pattern_and_value(text, "--layout");
    if (value != "in_out" && value != "out_in") {
      throw UsageError(fmt::format("--layout '{}': expected in_out or out_in", text));
    }
    bool matched = false;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      if (!glob_match(pattern, parameters_[i].name)) continue;
      matched = true;
      if (decided[i]) continue;
      decided[i] = true;
      parameters_[i].layout = value == "in_out" ? Layout::in_out : Layout::out_in;
    }
    if (!matched) {
      throw Error(ErrorKind::invalid_argument, kOperation,
                  fmt::format("layout pattern '{}' matches no parameter of file '{}'; correct it",
                              pattern, path_));
    }
  }
}

ConstTensorView StepInput::gradient(std::size_t parameter, std::int64_t k) const {
  const Gradients& gradients = gradients_[parameter];
  if (gradients.every.data != nullptr) return gradients.every;
  const auto at = gradients.by_step.find(k);
  return at != gradients.by_step.end() ? at->second : parameters_[parameter].grad;
}

std::vector<RoutedParameter> StepInput::routed(const Method& method, const Routing& routing) const {
  std::vector<Parameter> known = parameters_;
  if (const std::optional<double> most = method.rule()->zero_norm()) {
    for (Parameter& p : known) {
      if (!p.zero_start && p.value.numel() > 0) p.zero_start = norm_of(p.value) <= *most;
    }
  }
  return planned_routing(*method.rule(), known, routing);
}

void StepInput::check_state_names(const std::vector<std::string>& expected) const {
  for (const std::string& tensor : state_names_) {
    if (std::ranges::find(expected, tensor) != expected.end()) continue;
    const std::string near = nearest(tensor, expected);
    throw Error(ErrorKind::state_mismatch, kOperation,
                fmt::format("tensor '{}' of file '{}' is not state of this optimizer and routing "
                            "for parameter '{}'{}; remove it or choose the optimizer, options and "
                            "route that wrote it",
                            tensor, path_, *owner_of_state(tensor),
                            near.empty() ? "" : fmt::format("; nearest is '{}'", near)));
  }
}

const std::string* StepInput::owner_of_state(std::string_view tensor) const {
  tensor.remove_prefix(std::string_view("state.").size());
  for (std::size_t dot = tensor.rfind('.'); dot != std::string_view::npos && dot > 0;
       dot = tensor.rfind('.', dot - 1)) {
    const std::size_t index = index_of(tensor.substr(0, dot));
    if (index < parameters_.size()) return &parameters_[index].name;
  }
  return nullptr;
}

bool StepInput::has_state_of(std::string_view parameter) const {
  return std::ranges::any_of(state_names_, [&](const std::string& tensor) {
    return *owner_of_state(tensor) == parameter;
  });
}

void StepOutput::add_floats(const std::string& name, const Shape& shape,
                            const std::vector<double>& values) {
  Buffer& buffer = owned.emplace_back(values.size() * sizeof(float));
  std::ranges::transform(values, buffer.floats(), [](double v) { return static_cast<float>(v); });
  entries.push_back({name, {buffer.data(), shape, DType::f32}});
}

}  // namespace rode::cli
