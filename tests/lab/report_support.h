// SPDX-License-Identifier: Apache-2.0
// Runs with known numbers, in memory and on disk.
#pragma once

#include <string>
#include <vector>

#include "lab/report/report.h"
#include "support.h"

namespace rode::lab {

struct FakeRun {
  std::string task = "tiny-lm";
  std::string optimizer = "adamw";
  std::uint64_t seed = 1;
  double loss = 1;  // final and best
  std::string status = "finished";
  std::string lr = "0.001";
  std::int64_t steps = 10;
  double norm = 2;
};

inline Json fake_description(const FakeRun& fake) {
  return {{"format", 1},
          {"task",
           {{"name", fake.task},
            {"model", {{"kind", "qwen2"}, {"layers", 2}}},
            {"data", {{"kind", "tiny-lm"}, {"sequence", 16}}},
            {"train", {{"steps", 10}, {"batch", 8}, {"schedule", "cosine"}}}}},
          {"optimizer", fake.optimizer},
          {"method", fake.optimizer},
          {"options", {{"lr", fake.lr}, {"momentum", "0.9"}}},
          {"seed", fake.seed},
          {"steps", fake.steps},
          {"warmup", 2},
          {"version", "0.1.0"}};
}

// Evaluations at steps 0, 5 and 10 that fall to the loss, and the step before each.
inline std::vector<Json> fake_log(const FakeRun& fake) {
  const auto at = [](int layer, const char* kind) {
    return "model.layers." + std::to_string(layer) + ".self_attn." + kind + ".weight";
  };
  std::vector<Json> log;
  for (const int step : {0, 5, 10}) {
    Json radii = Json::object();
    Json angles = Json::object();
    for (const int layer : {0, 1}) {
      for (const char* kind : {"q_proj", "k_proj"}) {
        radii[at(layer, kind)] = {{"radius", 1.0 + 0.1 * step * (layer + 1)}};
        angles[at(layer, kind)] = {
            {"rho", 1.0}, {"rho_next", 1.01}, {"theta", 0.02}, {"q", 3.0}, {"gamma", 1.0}};
      }
    }
    if (step > 0) {
      Json line = {{"kind", "step"}, {"step", step - 1}, {"loss", fake.loss + 0.1}};
      line["update_norm"] = 0.5;
      if (fake.optimizer.starts_with("rode")) line["matrices"] = angles;
      log.push_back(line);
    }
    log.push_back({{"kind", "evaluation"},
                   {"step", step},
                   {"loss", fake.loss + 0.1 * (10 - step)},
                   {"weight_norm", fake.norm},
                   {"matrices", radii}});
  }
  return log;
}

inline RunSummary fake_run(const FakeRun& fake) {
  RunSummary run{.folder = fake.optimizer + "-" + std::to_string(fake.seed), .seed = fake.seed};
  run.run = fake_description(fake);
  if (fake.status == "unfinished") return run;
  run.status = fake.status == "finished" ? RunStatus::finished : RunStatus::diverged;
  run.result = {{"status", fake.status},   {"steps", fake.steps},      {"final_loss", fake.loss},
                {"best_loss", fake.loss},  {"weight_norm", fake.norm}, {"state_bytes", 4000000},
                {"parameters", 1000000},   {"seconds", 3.0},           {"device", "cpu"},
                {"peak_memory_bytes", 5e8}};
  run.log = fake_log(fake);
  for (const int step : {0, 5, 10}) {
    run.times.push_back({{"step", step}, {"seconds", 0.5 * step}, {"units_per_second", 1280.0}});
  }
  return run;
}

inline void write_run(const std::filesystem::path& folder, const FakeRun& fake) {
  std::filesystem::create_directories(folder);
  const RunSummary run = fake_run(fake);
  write_json(folder / "run.json", run.run);
  std::string log;
  for (const Json& line : run.log) log += line.dump() + "\n";
  write_file(folder / "log.jsonl", log);
  std::string times;
  for (const Json& line : run.times) times += line.dump() + "\n";
  write_file(folder / "times.jsonl", times);
  if (fake.status != "unfinished") write_json(folder / "result.json", run.result);
}

inline Report report_of(const std::vector<FakeRun>& fakes, const ReportOptions& options = {}) {
  FoundRuns found;
  for (const FakeRun& fake : fakes) found.runs.push_back(fake_run(fake));
  return make_report(std::move(found), options);
}

inline const Table& table_named(const std::vector<Table>& tables, const std::string& name) {
  for (const Table& table : tables) {
    if (table.name == name) return table;
  }
  throw std::out_of_range("no table " + name);
}

// The cell of a row, by the name of its column.
inline const Cell& cell_of(const Table& table, std::size_t row, const std::string& column) {
  for (std::size_t c = 0; c < table.columns.size(); ++c) {
    if (table.columns[c].name == column) return table.rows.at(row).at(c);
  }
  throw std::out_of_range("no column " + column);
}

}  // namespace rode::lab
