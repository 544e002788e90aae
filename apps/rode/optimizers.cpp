// SPDX-License-Identifier: Apache-2.0
// `rode optimizers`: every optimizer with its options, defaults and state bytes.
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "commands.h"
#include "model_shapes.h"
#include "rode/optimizer.h"
#include "support.h"

namespace rode::cli {
namespace {

struct OptimizersArguments {
  std::string shapes;
  std::string name;
  // Given at all: an empty text is wrong, not absent.
  bool with_shapes = false;
  bool with_name = false;
  bool json = false;
};

constexpr std::size_t kLineWidth = 80;

// Bytes of state per parameter, for a large square matrix and for what goes to the rest's rule;
// scalars per tensor do not show at one decimal.
struct Density {
  double matrix = 0;
  double rest = 0;
};

Density state_density(const Method& method) {
  constexpr std::int64_t side = 1024;
  Parameter parameter;
  parameter.name = "w";
  parameter.value.shape = {side, side};
  parameter.grad.shape = {side, side};
  const auto per_element = [&](Route route) {
    const std::size_t bytes = planned_state_bytes({&parameter, 1}, method, {route, {}});
    return static_cast<double>(bytes) / static_cast<double>(parameter.value.numel());
  };
  return {per_element(Route::matrix), per_element(Route::rest)};
}

// "  lr=0.05 momentum=0.9 ..." broken at the line width.
std::string wrapped_options(const std::vector<OptionInfo>& options) {
  std::string text;
  std::string line = "   ";
  for (const OptionInfo& option : options) {
    const std::string value = option.value.empty() ? "''" : option.value;
    const std::string item = fmt::format(" {}={}", option.key, value);
    if (line.size() + item.size() > kLineWidth) {
      text += line + "\n";
      line = "   ";
    }
    line += item;
  }
  return text + line + "\n";
}

std::string options_with_help(const std::vector<OptionInfo>& options) {
  std::vector<std::vector<std::string>> rows = {{"  option", "default", "meaning"}};
  for (const OptionInfo& option : options) {
    rows.push_back({"  " + option.key, option.value.empty() ? "''" : option.value, option.help});
  }
  return format_table(rows, 3);
}

Json to_json(const OptimizerInfo& info, const Method& method,
             const std::optional<std::size_t>& state_bytes) {
  Json options = Json::array();
  for (const OptionInfo& option : info.options) {
    options.push_back({{"key", option.key},
                       {"default", typed_value(option.value)},
                       {"live", option.live},
                       {"set", option.set},
                       {"help", option.help}});
  }
  const Density density = state_density(method);
  Json json = {{"name", info.name}, {"summary", info.summary}, {"options", std::move(options)}};
  json["state_bytes_per_parameter"] = {{"matrix", density.matrix}, {"rest", density.rest}};
  if (state_bytes) {
    json["state_bytes"] = *state_bytes;
    json["state_mb"] = static_cast<double>(*state_bytes) / 1e6;
  }
  return json;
}

void print_state_table(const Model& model, const std::vector<OptimizerInfo>& list,
                       const std::vector<std::size_t>& state_bytes) {
  std::int64_t count = 0;
  for (const ModelTensor& tensor : model.tensors) count += tensor.shape.numel();
  fmt::print("State for {}: {} parameters in {} tensors, route {} (MB = 10^6 bytes)\n\n",
             model.name, count, model.tensors.size(), to_string(model.route));
  std::vector<std::vector<std::string>> rows = {
      {"optimizer", "state MB", "bytes", "per parameter"}};
  for (std::size_t i = 0; i < list.size(); ++i) {
    const auto bytes = static_cast<double>(state_bytes[i]);
    rows.push_back({list[i].name, fmt::format("{:.1f}", bytes / 1e6),
                    fmt::format("{}", state_bytes[i]),
                    fmt::format("{:.2f}", bytes / static_cast<double>(count))});
  }
  fmt::print("{}", format_table(rows));
}

void print_options(const std::vector<OptimizerInfo>& list, bool with_help) {
  for (const OptimizerInfo& info : list) {
    const Density density = state_density(Method::by_name(info.name));
    fmt::print(
        "{}: {}\n    state bytes per parameter: {:.1f} in a square matrix, {:.1f} elsewhere\n",
        info.name, info.summary, density.matrix, density.rest);
    fmt::print("{}\n", with_help ? options_with_help(info.options) : wrapped_options(info.options));
  }
  if (!with_help) fmt::print("'rode optimizers --name NAME' explains an optimizer's options.\n");
}

std::vector<OptimizerInfo> chosen(const OptimizersArguments& arguments) {
  std::vector<OptimizerInfo> list = list_optimizers();
  if (!arguments.with_name) return list;
  (void)make_method(arguments.name, {});  // refuses an unknown name and names the nearest
  std::erase_if(list, [&](const OptimizerInfo& info) { return info.name != arguments.name; });
  return list;
}

void run(const OptimizersArguments& arguments) {
  const std::vector<OptimizerInfo> list = chosen(arguments);
  std::optional<Model> model;
  std::vector<std::size_t> state_bytes;
  if (arguments.with_shapes) {
    model = model_by_name(arguments.shapes);
    const std::vector<Parameter> parameters = model->parameters();
    for (const OptimizerInfo& info : list) {
      state_bytes.push_back(
          planned_state_bytes(parameters, Method::by_name(info.name), {model->route, {}}));
    }
  }
  if (arguments.json) {
    Json optimizers = Json::array();
    for (std::size_t i = 0; i < list.size(); ++i) {
      optimizers.push_back(to_json(list[i], Method::by_name(list[i].name),
                                   model ? std::optional(state_bytes[i]) : std::nullopt));
    }
    Json json = {{"optimizers", std::move(optimizers)}};
    if (model) {
      json["shapes"] = model->name;
      json["route"] = to_string(model->route);
    }
    fmt::print("{}\n", json.dump(2));
  } else if (model) {
    print_state_table(*model, list, state_bytes);
  } else {
    print_options(list, arguments.with_name);
  }
}

}  // namespace

void add_optimizers_command(CLI::App& app) {
  const auto arguments = std::make_shared<OptimizersArguments>();
  CLI::App* command =
      app.add_subcommand("optimizers", "List the optimizers: options, defaults, state bytes");
  const CLI::Option* shapes = command->add_option(
      "--shapes", arguments->shapes, fmt::format("state bytes for this model: {}", kShapesHelp));
  const CLI::Option* name = command->add_option("--name", arguments->name,
                                                "only this optimizer, with every option explained");
  command->add_flag("--json", arguments->json, "print JSON");
  command->footer(
      "Examples:\n  rode optimizers --name rode\n  rode optimizers --shapes qwen2-114m");
  command->callback([=] {
    arguments->with_shapes = shapes->count() > 0;
    arguments->with_name = name->count() > 0;
    run(*arguments);
  });
}

}  // namespace rode::cli
