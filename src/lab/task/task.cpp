// SPDX-License-Identifier: Apache-2.0
// Tasks by name or path, and as JSON.
#include "lab/task/task.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/file_io.h"
#include "core/nearest.h"
#include "lab/base/embedded.h"
#include "rode/error.h"

namespace rode::lab {
namespace {

constexpr std::string_view kFolder = "src/lab/task/tasks/";
constexpr std::string_view kExtension = ".toml";

std::string name_of(std::string_view file) {
  return std::string(file.substr(kFolder.size(), file.size() - kFolder.size() - kExtension.size()));
}

nlohmann::ordered_json model_json(const ModelSpec& model) {
  nlohmann::ordered_json json = {{"kind", model.kind}};
  const auto put = [&](const char* key, std::int64_t value) {
    if (value != 0) json[key] = value;
  };
  put("layers", model.layers);
  put("width", model.width);
  put("heads", model.heads);
  put("kv_heads", model.kv_heads);
  put("mlp_width", model.mlp_width);
  put("vocab_size", model.vocab_size);
  put("positions", model.positions);
  put("classes", model.classes);
  if (model.vocab_size > 0) {
    if (model.vocab_from_data) json["vocab_from_data"] = true;
    json["tied"] = model.tied;
    if (model.kind == "qwen2") json["rope_base"] = model.rope_base;
    json["norm_eps"] = model.norm_eps;
    json["init_deviation"] = model.init_deviation;
    json["dropout"] = model.dropout;
  }
  return json;
}

nlohmann::ordered_json data_json(const Task& task) {
  const DataSpec& data = task.data;
  nlohmann::ordered_json json = {{"kind", data.kind}};
  if (!data.path.empty()) {
    json.update({{"path", data.path}, {"train", data.train}, {"valid", data.valid}});
    if (!data.valid_path.empty()) json["valid_path"] = data.valid_path;
  }
  if (data.train_samples > 0) json["train_samples"] = data.train_samples;
  if (data.classes > 0) json["classes"] = data.classes;
  json["eval_samples"] = data.eval_samples;
  if (task.is_language()) {
    json["sequence"] = data.sequence;
  } else {
    json.update({{"image_size", data.image_size},
                 {"eval_resize", data.eval_resize},
                 {"augment", data.augment},
                 {"area_min", data.area_min}});
  }
  return json;
}

nlohmann::ordered_json train_json(const TrainSpec& train) {
  nlohmann::ordered_json json;
  json[train.steps > 0 ? "steps" : "epochs"] = train.steps > 0 ? train.steps : train.epochs;
  json.update({{"batch", train.batch},
               {"accumulate", train.accumulate},
               {"warmup", train.warmup},
               {"schedule", train.schedule},
               {"eval_interval", train.eval_interval},
               {"checkpoint_interval", train.checkpoint_interval},
               {"precision", train.precision},
               {"parameters", train.parameters},
               {"checkpoint_activations", train.checkpoint_activations},
               {"clip", train.clip},
               {"routing", to_string(train.route)}});
  // Only where they act: runs of earlier versions have none of them.
  if (train.schedule == "wsd") {
    json["cooldown"] = train.cooldown;
    json["cooldown_form"] = train.cooldown_form;
    if (train.cooldown_form == "power") json["cooldown_power"] = train.cooldown_power;
  }
  if (train.momentum_warmup > 0) {
    json["momentum_warmup"] = train.momentum_warmup;
    json["momentum_start"] = train.momentum_start;
  }
  if (train.average_tail > 0) json["average_tail"] = train.average_tail;
  return json;
}

}  // namespace

const OptimizerSpec& Task::optimizer(std::string_view wanted) const {
  std::vector<std::string> names;
  for (const OptimizerSpec& spec : optimizers) {
    if (spec.name == wanted) return spec;
    names.push_back(spec.name);
  }
  throw Error(ErrorKind::invalid_argument, "task",
              fmt::format("task '{}' has no rates for the optimizer '{}'; did you mean '{}'? "
                          "expected {}",
                          name, wanted, nearest(wanted, names), fmt::join(names, ", ")));
}

std::vector<std::string> task_names() {
  std::vector<std::string> names;
  for (const EmbeddedFile& file : embedded_files()) {
    if (file.name.starts_with(kFolder)) names.push_back(name_of(file.name));
  }
  return names;
}

Task load_task(const std::string& name_or_path) {
  if (name_or_path.find('/') != std::string::npos || name_or_path.ends_with(kExtension)) {
    const std::filesystem::path path(name_or_path);
    const FileMapping mapping(path, "task");
    const auto bytes = mapping.bytes();
    return parse_task({reinterpret_cast<const char*>(bytes.data()), bytes.size()},
                      path.stem().string(), name_or_path);
  }
  for (const EmbeddedFile& file : embedded_files()) {
    if (file.name.starts_with(kFolder) && name_of(file.name) == name_or_path) {
      return parse_task(file.text, name_or_path, file.name);
    }
  }
  const std::vector<std::string> names = task_names();
  throw Error(
      ErrorKind::invalid_argument, "task",
      fmt::format("unknown task '{}'; did you mean '{}'? expected {}, or the path of a "
                  ".toml file",
                  printable(name_or_path), nearest(name_or_path, names), fmt::join(names, ", ")));
}

nlohmann::ordered_json to_json(const Task& task) {
  nlohmann::ordered_json json = {{"name", task.name},
                                 {"title", task.title},
                                 {"source", task.source},
                                 {"model", model_json(task.model)},
                                 {"data", data_json(task)},
                                 {"train", train_json(task.train)},
                                 {"optimizers", nlohmann::ordered_json::array()}};
  for (const OptimizerSpec& spec : task.optimizers) {
    nlohmann::ordered_json settings = nlohmann::ordered_json::object();
    for (const auto& [key, value] : spec.settings) settings[key] = value;
    json["optimizers"].push_back({{"name", spec.name},
                                  {"optimizer", spec.optimizer},
                                  {"settings", settings},
                                  {"source", spec.source}});
  }
  for (const ScaleSpec& scale : task.scales) {
    for (const auto& [key, value] : scale.settings) json["scales"][scale.name][key] = value;
  }
  if (!task.scale.empty()) json["scale"] = task.scale;
  if (task.sweep.trials > 0) json["sweep"] = sweep_json(task.sweep);
  return json;
}

}  // namespace rode::lab
