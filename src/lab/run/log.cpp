// SPDX-License-Identifier: Apache-2.0
// Records as lines of JSON and as scalars of TensorBoard.
#include "lab/run/log.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "core/file_io.h"
#include "lab/base/sealed_json.h"

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

Scalars evaluation_scalars(const Json& json) {
  Scalars scalars = scalars_of(json, "validation/");
  if (json.contains("matrices")) append_matrices(scalars, json["matrices"]);
  return scalars;
}

std::string_view mapped_text(const FileMapping& mapping) {
  return {reinterpret_cast<const char*>(mapping.bytes().data()), mapping.bytes().size()};
}

// The last line of a file of whole lines; nothing where it was damaged.
Json last_line(const std::filesystem::path& file) {
  const FileMapping mapping(file, "log");
  const std::string_view text = mapped_text(mapping);
  if (text.size() < 2) return {};
  const std::size_t before = text.rfind('\n', text.size() - 2);
  const std::string_view line = text.substr(before == std::string_view::npos ? 0 : before + 1);
  Json json = Json::parse(line, nullptr, false);
  return unseal(line, json) == Seal::wrong ? Json() : json;
}

void tell(const Note& note, const std::filesystem::path& file, std::string_view what) {
  if (note) note(fmt::format("'{}' {}", printable(file.string()), what));
}

// A damaged line stays: what it was is not known, and the report of the run will name it too.
void tell_damage(const std::filesystem::path& file, std::string_view text, const Note& note) {
  std::size_t damaged = 0;
  std::size_t first = 0;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size() - 1);
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end + 1);
    Json json = Json::parse(line, nullptr, false);
    if (json.is_object() && unseal(line, json) != Seal::wrong) continue;
    if (damaged++ == 0) first = number;
  }
  if (damaged == 0) return;
  tell(note, file,
       fmt::format("has {} damaged line(s), the first is line {}; the run continues, but 'rode "
                   "compare' will refuse the log; restore it from a copy",
                   damaged, first));
}

// How much of the log there is to keep: whole lines, `wanted` bytes where it has them.
std::uint64_t kept_log(const std::filesystem::path& file, std::uint64_t wanted, const Note& note) {
  if (wanted == 0) return 0;
  if (!std::filesystem::exists(file)) {
    tell(note, file, "is missing; the log restarts after the checkpoint");
    return 0;
  }
  const FileMapping mapping(file, "log");
  const auto bytes = mapping.bytes();
  std::uint64_t kept = std::min<std::uint64_t>(wanted, bytes.size());
  while (kept > 0 && bytes[kept - 1] != std::byte{'\n'}) --kept;
  if (kept < wanted) {
    tell(note, file,
         fmt::format("has {} bytes in whole lines; the checkpoint was saved when it had {}; the "
                     "log continues after them",
                     kept, wanted));
  }
  tell_damage(file, mapped_text(mapping).substr(0, kept), note);
  return kept;
}

bool has_number(const Json& line, const char* key) {
  return line.contains(key) && line[key].is_number();
}

struct KeptTimes {
  std::uint64_t bytes = 0;
  double seconds = 0;
};

KeptTimes kept_times(const std::filesystem::path& file, std::int64_t step, const Note& note) {
  KeptTimes kept;
  if (step == 0 || !std::filesystem::exists(file)) return kept;
  const JsonLines read = read_good_lines(file);
  bool whole = read.whole;
  for (std::size_t i = 0; i < read.lines.size(); ++i) {
    const Json& line = read.lines[i];
    if (!has_number(line, "step") || !has_number(line, "seconds")) {
      whole = false;
      break;
    }
    if (line["step"].get<std::int64_t>() > step) return kept;  // what follows is not needed
    kept = {read.ends[i], line["seconds"].get<double>()};
  }
  if (!whole) tell(note, file, "has a damaged line; times continue from the line before it");
  return kept;
}

}  // namespace

RunLog::RunLog(const RunFolder& folder, std::uint64_t log_bytes, std::int64_t step,
               bool tensorboard, const Note& note)
    : log_(folder.log(), kept_log(folder.log(), log_bytes, note)) {
  const KeptTimes kept = kept_times(folder.times(), step, note);
  seconds_before_ = kept.seconds;
  times_ = std::make_unique<AppendFile>(folder.times(), kept.bytes);
  sync_folder(folder.path(), "log");  // a checkpoint that outlives the machine needs its log
  if (!tensorboard) return;
  events_.emplace(folder.path(), step);
  // The start voids what earlier files hold of this step. Of a step not yet made that is right, but
  // the evaluation of its number is before the checkpoint, and last in the log: it is reported
  // again.
  const Json last = log_.size() > 0 ? last_line(folder.log()) : Json();
  if (last.is_object() && last.value("kind", "") == "evaluation" && has_number(last, "step") &&
      last["step"].get<std::int64_t>() == step) {
    events_->scalars(step, evaluation_scalars(last));
  }
}

void RunLog::step(const StepRecord& record) {
  Json json = {{"kind", "step"}, {"step", record.step}, {"loss", record.loss}};
  put(json, "accuracy", record.accuracy);
  json["multiplier"] = record.multiplier;
  json["lr"] = record.lr;
  put(json, "lr_rho", record.lr_rho);
  put(json, "lr_rest", record.lr_rest);
  put(json, "momentum", record.momentum);
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
  log_.append(sealed(json) + "\n");
  if (events_) events_->scalars(record.step, scalars);
}

void RunLog::evaluation(const EvalRecord& record) {
  Json json = {{"kind", "evaluation"}, {"step", record.step}, {"loss", record.loss}};
  put(json, "accuracy", record.accuracy);
  json["best_loss"] = record.best_loss;
  put(json, "averaged_loss", record.averaged_loss);
  put(json, "averaged_accuracy", record.averaged_accuracy);
  json["weight_norm"] = record.weight_norm;
  json["matrices"] = radii_json(record.radii);
  log_.append(sealed(json) + "\n");
  if (events_) events_->scalars(record.step, evaluation_scalars(json));
}

void RunLog::diverged(std::int64_t step, std::string_view what) {
  log_.append(sealed({{"kind", "diverged"}, {"step", step}, {"what", what}}) + "\n");
}

double RunLog::seconds() const {
  return seconds_before_ + std::chrono::duration<double>(Clock::now() - begin_).count();
}

void RunLog::time(std::int64_t step, double units_per_second) {
  const Json json = {
      {"step", step}, {"seconds", seconds()}, {"units_per_second", units_per_second}};
  times_->append(sealed(json) + "\n");
}

}  // namespace rode::lab
