// SPDX-License-Identifier: Apache-2.0
// A task with some of its values replaced: by a command line, or by one of its scales.
#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/file_io.h"
#include "core/nearest.h"
#include "lab/task/task.h"
#include "lab/task/task_reader.h"
#include "rode/error.h"

namespace rode::lab {
namespace {

// As a file would say it: a number, true or false, or else a string. Without a line of its own.
void put(toml::table& table, std::string_view key, const std::string& value) {
  if (value == "true" || value == "false") {
    table.insert_or_assign(key, value == "true");
    return;
  }
  const auto json = nlohmann::json::parse(value, nullptr, false);
  if (json.is_number_integer()) {
    table.insert_or_assign(key, json.get<std::int64_t>());
  } else if (json.is_number()) {
    table.insert_or_assign(key, json.get<double>());
  } else {
    table.insert_or_assign(key, value);
  }
}

// Checked as a file would be; errors begin with `place`, since neither the file nor its lines have
// the values.
Task replaced(const Task& task, const Settings& settings, std::string_view place) {
  toml::table table = parse_toml(to_toml(task), task.source, kTask);
  table.erase("sweep");  // fits the task as it is; a run does not use it
  for (const auto& [path, value] : settings) {
    const std::size_t dot = path.find('.');
    const std::string section = path.substr(0, dot), key = path.substr(dot + 1);
    toml::table& target = *table.get_as<toml::table>(section);
    put(target, key, value);
    // A task has one length.
    if (section == "train" && key == "steps") target.erase("epochs");
    if (section == "train" && key == "epochs") target.erase("steps");
    // GPT-2's keys and values follow its heads.
    if (path == "model.heads" && task.model.kind == "gpt2") target.erase("kv_heads");
  }
  try {
    Task out = read_task(table, task.name, task.source);
    out.scale = task.scale;
    out.sweep = task.sweep;
    return out;
  } catch (const Error& error) {
    const std::string text = error.what(), file = file_error(kTask, task.source, "").what();
    throw Error(
        ErrorKind::invalid_argument, kTask,
        fmt::format("{}: {}", place, text.starts_with(file) ? text.substr(file.size()) : text));
  }
}

}  // namespace

bool is_task_key(std::string_view key) {
  return key.starts_with("model.") || key.starts_with("data.") || key.starts_with("train.");
}

Task with_settings(const Task& task, const Settings& settings) {
  return settings.empty() ? task : replaced(task, settings, "--set");
}

Task with_scale(const Task& task, const std::string& scale) {
  if (scale.empty()) return task;
  std::vector<std::string> names;
  for (const ScaleSpec& spec : task.scales) {
    names.push_back(spec.name);
    if (spec.name != scale) continue;
    Task out =
        replaced(task, spec.settings, fmt::format("file '{}': [scale.{}]", task.source, scale));
    out.title += fmt::format(", scale {}", scale);
    out.scale = scale;
    out.scales.clear();
    out.sweep = {};  // its lengths and ranges are those of the whole task
    return out;
  }
  throw Error(
      ErrorKind::invalid_argument, kTask,
      names.empty()
          ? fmt::format("task '{}' has no scale '{}': its file has no [scale.{}]; add one, or "
                        "leave out --scale",
                        task.name, printable(scale), printable(scale))
          : fmt::format("task '{}' has no scale '{}'; did you mean '{}'? expected {}", task.name,
                        printable(scale), nearest(scale, names), fmt::join(names, ", ")));
}

Task load_task(const std::string& name_or_path, const std::string& scale,
               const Settings& settings) {
  return with_settings(with_scale(load_task(name_or_path), scale), settings);
}

}  // namespace rode::lab
