// SPDX-License-Identifier: Apache-2.0
// Reads the transcribed tables.
#include "lab/report/published.h"

#include <algorithm>
#include <array>

#include "lab/base/embedded.h"
#include "lab/task/task.h"

namespace rode::lab {
namespace {

constexpr std::string_view kTwin = "-published";

PublishedColumn column_of(const Json& json) {
  PublishedColumn column{json.at("table"), json.at("task"), json.at("metric"), {}};
  for (const auto& [name, value] : json.at("values").items()) {
    PublishedValue& entry = column.values[name];
    entry.mean = value.at(0);
    if (value.size() > 1) entry.deviation = value.at(1).get<double>();
  }
  return column;
}

PublishedStudy study_of(const Json& json) {
  PublishedStudy study{json.at("name"),
                       json.at("table"),
                       json.at("title"),
                       json.at("base"),
                       json.at("columns"),
                       json.at("marks"),
                       {}};
  for (const auto& [name, words] : json.at("rows").items()) {
    study.rows.emplace_back(name, words.get<std::vector<std::string>>());
  }
  return study;
}

Published read_published() {
  Published out;
  for (const EmbeddedFile& file : embedded_files()) {
    if (file.name != "src/lab/report/published.json") continue;
    const Json json = Json::parse(file.text);
    for (const Json& table : json.at("tables")) out.columns.push_back(column_of(table));
    for (const Json& study : json.at("studies")) out.studies.push_back(study_of(study));
    for (const auto& [name, task] : json.at("tasks").items()) {
      out.tasks[name] = {task.at("seeds"), task.at("steps"),
                         task.at("notes").get<std::vector<std::string>>()};
    }
  }
  return out;
}

// What makes a model one of the paper's, whatever it is trained on.
bool same_model(const Json& a, const Json& b) {
  constexpr std::array<const char*, 7> kShape = {"kind",     "layers",    "width",  "heads",
                                                 "kv_heads", "mlp_width", "classes"};
  return std::all_of(kShape.begin(), kShape.end(),
                     [&](const char* key) { return a.value(key, Json()) == b.value(key, Json()); });
}

}  // namespace

const Published& published() {
  static const Published kPublished = read_published();
  return kPublished;
}

std::string without_twin(const std::string& optimizer) {
  if (!optimizer.ends_with(kTwin)) return optimizer;
  return optimizer.substr(0, optimizer.size() - kTwin.size());
}

std::optional<PublishedValue> Published::find(std::initializer_list<int> tables,
                                              const std::string& task, const std::string& metric,
                                              const std::string& optimizer) const {
  for (const PublishedColumn& column : columns) {
    if (column.task != task || column.metric != metric) continue;
    if (std::find(tables.begin(), tables.end(), column.table) == tables.end()) continue;
    const auto found = column.values.find(without_twin(optimizer));
    if (found != column.values.end()) return found->second;
  }
  return {};
}

std::string Published::match(const Comparison& comparison) const {
  if (tasks.count(comparison.task) > 0) return comparison.task;
  const Json model = comparison.run()["task"].value("model", Json::object());
  const std::vector<std::string> built_in = task_names();
  for (const auto& [name, task] : tasks) {
    if (std::find(built_in.begin(), built_in.end(), name) == built_in.end()) continue;
    if (same_model(model, to_json(load_task(name)).at("model"))) return name;
  }
  return {};
}

std::string Published::task_of(int table) const {
  for (const PublishedColumn& column : columns) {
    if (column.table == table) return column.task;
  }
  return {};
}

}  // namespace rode::lab
