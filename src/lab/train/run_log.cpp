// SPDX-License-Identifier: Apache-2.0
// Records as lines of JSON and as scalars of TensorBoard.
#include "lab/train/run_log.h"

#include <cmath>

namespace rode::lab {
namespace {

using Scalars = std::vector<std::pair<std::string, double>>;

void put(Json& json, const char* key, const std::optional<double>& value) {
  if (value) json[key] = *value;
}

// Every number of a flat object, under a prefix.
Scalars scalars_of(const Json& json, const std::string& prefix) {
  Scalars out;
  for (const auto& [key, value] : json.items()) {
    if (value.is_number() && key != "step") out.emplace_back(prefix + key, value.get<double>());
  }
  return out;
}

Json matrices_json(const std::vector<MatrixDiagnostics>& matrices) {
  Json out = Json::object();
  for (const MatrixDiagnostics& m : matrices) {
    out[m.name] = {{"rho", m.rho},     {"rho_next", m.rho_next}, {"s", m.s},          {"q", m.q},
                   {"theta", m.theta}, {"gamma", m.gamma},       {"m_norm", m.m_norm}};
  }
  return out;
}

Json radii_json(const std::vector<std::pair<std::string, double>>& radii) {
  Json out = Json::object();
  for (const auto& [name, radius] : radii) out[name] = {{"radius", radius}};
  return out;
}

void append_matrices(Scalars& scalars, const Json& matrices) {
  for (const auto& [name, values] : matrices.items()) {
    for (auto& entry : scalars_of(values, "matrix/" + name + "/")) {
      scalars.push_back(std::move(entry));
    }
  }
}

}  // namespace

RunLog::RunLog(const RunFolder& folder, std::uint64_t log_bytes, std::int64_t step,
               bool tensorboard)
    : log_(folder.log(), log_bytes) {
  std::uint64_t kept = 0;
  if (step > 0 && std::filesystem::exists(folder.times())) {
    for (const Json& line : read_json_lines(folder.times())) {
      if (line.value("step", std::int64_t{0}) > step) break;
      seconds_before_ = line.value("seconds", 0.0);
      kept += line.dump().size() + 1;
    }
  }
  times_ = std::make_unique<AppendFile>(folder.times(), kept);
  if (tensorboard) events_.emplace(folder.path(), step);
}

void RunLog::step(const StepRecord& record) {
  Json json = {{"kind", "step"}, {"step", record.step}, {"loss", record.loss}};
  put(json, "accuracy", record.accuracy);
  json["multiplier"] = record.multiplier;
  json["lr"] = record.lr;
  put(json, "lr_rho", record.lr_rho);
  put(json, "lr_rest", record.lr_rest);
  if (record.global) {
    json["gradient_norm"] = record.global->gradient_norm;
    json["weight_norm"] = record.global->weight_norm;
    json["update_norm"] = record.global->update_norm;
    json["update_ratio"] = record.global->update_ratio;
  }
  Scalars scalars = scalars_of(json, "train/");
  if (!record.matrices.empty()) {
    json["matrices"] = matrices_json(record.matrices);
    append_matrices(scalars, json["matrices"]);
  }
  log_.append(json.dump() + "\n");
  if (events_) events_->scalars(record.step, scalars);
}

void RunLog::evaluation(const EvalRecord& record) {
  Json json = {{"kind", "evaluation"}, {"step", record.step}, {"loss", record.loss}};
  put(json, "accuracy", record.accuracy);
  json["best_loss"] = record.best_loss;
  json["weight_norm"] = record.weight_norm;
  Scalars scalars = scalars_of(json, "validation/");
  json["matrices"] = radii_json(record.radii);
  append_matrices(scalars, json["matrices"]);
  log_.append(json.dump() + "\n");
  if (events_) events_->scalars(record.step, scalars);
}

void RunLog::diverged(std::int64_t step, std::string_view what) {
  log_.append(Json{{"kind", "diverged"}, {"step", step}, {"what", what}}.dump() + "\n");
}

double RunLog::seconds() const {
  return seconds_before_ + std::chrono::duration<double>(Clock::now() - begin_).count();
}

void RunLog::time(std::int64_t step, double units_per_second) {
  const Json json = {
      {"step", step}, {"seconds", seconds()}, {"units_per_second", units_per_second}};
  times_->append(json.dump() + "\n");
}

}  // namespace rode::lab
