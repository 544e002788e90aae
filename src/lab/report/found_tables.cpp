// SPDX-License-Identifier: Apache-2.0
// The paper's tables 5 and 7, of what `rode evaluate` and `rode bench systems` wrote.
#include <algorithm>
#include <array>
#include <set>

#include <fmt/format.h>

#include "lab/report/tables.h"

namespace rode::lab {
namespace {

constexpr double kMega = 1e-6;
constexpr double kGiga = 1e-9;
constexpr const char* kFineTuned = "qwen3.5-9b";  // the paper's model, as published.json calls it

Cell number_cell(const Json& row, const std::string& key, int digits, double scale = 1) {
  Cell cell{.digits = digits};
  if (const auto value = number_at(row, key)) cell.value = *value * scale;
  return cell;
}

// "rode (loop)" is "rode-loop" of the paper's table, "rode (fused)" its "rode".
std::string published_name(std::string optimizer) {
  const std::size_t space = optimizer.find(" (");
  if (space == std::string::npos) return optimizer;
  const bool loop = optimizer.ends_with("(loop)");
  return optimizer.substr(0, space) + (loop ? "-loop" : "");
}

struct Benchmark {
  const char* key;        // of results.json
  const char* published;  // of published.json
  const char* label;
};
constexpr std::array<Benchmark, 4> kBenchmarks = {
    {{"gsm8k", "gsm8k", "GSM8K"},
     {"math500", "math_500", "MATH-500"},
     {"mmlu_stem", "mmlu_stem", "MMLU-STEM"},
     {"mmlu_pro_math", "mmlu_pro_math", "MMLU-Pro Math"}}};

// What the seeds of an optimizer must share.
Json protocol_of(const Json& result) {
  Json out = Json::object();
  for (const char* key : {"steps", "split", "format", "limit", "max_new_tokens", "options"}) {
    out[key] = result.value(key, Json());
  }
  if (out["options"].is_object()) out["options"].erase("seed");
  return out;
}

// What the rows must share besides, to be compared: all of it but the optimizer's own options. An
// evaluation that lacks a value is not compared in it.
constexpr std::array<const char*, 6> kSharedByRows = {"base_model", "steps", "split",
                                                      "format",     "limit", "max_new_tokens"};

bool other_base(const Json& a, const Json& b) {
  const std::string one = text_at(a, "base_model"), two = text_at(b, "base_model");
  return !one.empty() && !two.empty() && one != two;
}

struct FineTuned {
  std::string optimizer;
  std::vector<const Json*> seeds;
};

std::vector<FineTuned> by_optimizer(const std::vector<FoundTable>& found,
                                    std::vector<RunProblem>& problems) {
  std::vector<FineTuned> out;
  for (const FoundTable& one : found) {
    const std::string name = text_at(one.json, "optimizer");
    const auto same_name = [&](const FineTuned& row) { return row.optimizer == name; };
    auto row = std::find_if(out.begin(), out.end(), same_name);
    if (row == out.end()) row = out.insert(out.end(), {name, {}});
    std::string what;
    for (const Json* other : row->seeds) {
      if ((*other)["seed"] == one.json["seed"]) {
        what = fmt::format(
            "{} with seed {} was evaluated twice; this one is a copy, or another "
            "evaluation of the same run",
            name, one.json["seed"].dump());
      } else if (protocol_of(*other) != protocol_of(one.json) || other_base(*other, one.json)) {
        what = fmt::format(
            "{}: steps, options, base model, split, format or limit differ from those of its first "
            "seed; repeat the evaluation with the same values",
            name);
      }
    }
    if (what.empty()) {
      row->seeds.push_back(&one.json);
    } else {
      problems.push_back({one.file, what});
    }
  }
  return out;
}

// One note per key in which rows differ, with the value of every row.
std::vector<std::string> differences_of_rows(const std::vector<FineTuned>& rows) {
  std::vector<std::string> out;
  for (const char* key : kSharedByRows) {
    std::set<Json> values;
    std::string told;
    for (const FineTuned& row : rows) {
      const auto has = [&](const Json* seed) { return seed->contains(key); };
      const auto seed = std::find_if(row.seeds.begin(), row.seeds.end(), has);
      if (seed == row.seeds.end()) continue;
      const Json& value = (*seed)->at(key);
      values.insert(value);
      told += fmt::format("{}{} {}", told.empty() ? "" : ", ", row.optimizer, value.dump());
    }
    if (values.size() < 2) continue;
    out.push_back(fmt::format(
        "The rows follow different protocols and cannot be compared: {} is {}.", key, told));
  }
  return out;
}

// Over the seeds that have it.
template <class Value>
std::optional<Spread> over_seeds(const FineTuned& row, Value&& value) {
  std::vector<double> values;
  for (const Json* seed : row.seeds) {
    if (const std::optional<double> one = value(*seed)) values.push_back(*one);
  }
  return spread_of(values);
}

}  // namespace

Table bench_systems_table(const FoundTable& found) {
  Table out{.name = "bench_systems",
            .title = "Systems cost, as 'rode bench systems' measured it",
            .columns = {{"task"},
                        {"optimizer"},
                        {"state MB"},
                        {"peak GB (torch)"},
                        {"peak GB (+ workspace)"},
                        {"step ms"},
                        {"opt. ms"},
                        {"throughput"},
                        {"paper: state MB"},
                        {"paper: peak GB"},
                        {"paper: step ms"},
                        {"paper: opt. ms"},
                        {"paper: throughput"}}};
  for (const Json& row : found.json.at("rows")) {
    const std::string task = text_at(row, "task"), optimizer = text_at(row, "optimizer");
    const auto of_paper = [&](const char* metric, int digits) {
      return published_cell(published().find({7}, task, metric, published_name(optimizer)), digits);
    };
    out.rows.push_back(
        {text_cell(task), text_cell(optimizer), number_cell(row, "state_bytes", 1, kMega),
         number_cell(row, "torch_peak_bytes", 2, kGiga), number_cell(row, "peak_bytes", 2, kGiga),
         number_cell(row, "step_ms", 2), number_cell(row, "optimizer_ms", 2),
         number_cell(row, "throughput_vs_adamw", 2), of_paper("state_mb", 1),
         of_paper("peak_gb", 2), of_paper("step_ms", 1), of_paper("optimizer_ms", 1),
         of_paper("throughput", 2)});
  }
  out.drop_empty_columns();
  const Json& about = found.json.value("environment", Json::object());
  const std::string chip =
      text_at(about, "gpu").empty() ? text_at(about, "cpu") : text_at(about, "gpu");
  out.notes = {fmt::format(
      "{}{}{} runs of {} timed steps after {}: medians of the runs' medians; opt. is the "
      "optimizer's step and the clearing of gradients; throughput is relative to AdamW. The "
      "paper's values are from another GPU (RTX 5090 D v2).",
      chip.empty() ? "" : chip + "; ",
      found.json.contains("scale") ? fmt::format("scale {}; ", text_at(found.json, "scale")) : "",
      number_at(found.json, "runs").value_or(0), number_at(found.json, "steps").value_or(0),
      number_at(found.json, "warmup").value_or(0))};
  return out;
}

Table fine_tuning_table(const std::vector<FoundTable>& found, std::vector<RunProblem>& problems) {
  Table out{.name = "fine_tuning",
            .title = "Fine-tuning, as 'rode evaluate' found it",
            .columns = {{"optimizer"}, {"best val. loss", Better::low}}};
  for (const Benchmark& one : kBenchmarks) out.columns.push_back({one.label, Better::high});
  out.columns.push_back({"seeds"});
  out.columns.push_back({"paper: best val. loss"});
  for (const Benchmark& one : kBenchmarks) {
    out.columns.push_back({fmt::format("paper: {}", one.label)});
  }
  std::set<std::string> limits;
  const std::vector<FineTuned> rows = by_optimizer(found, problems);
  for (const FineTuned& row : rows) {
    const auto paper = [&](const char* metric, int digits) {
      return published_cell(published().find({5}, kFineTuned, metric, row.optimizer), digits);
    };
    std::vector<Cell> cells = {
        text_cell(row.optimizer),
        spread_cell(
            over_seeds(row,
                       [](const Json& seed) { return number_at(seed, "best_validation_loss"); }),
            4)};
    for (const Benchmark& one : kBenchmarks) {
      cells.push_back(spread_cell(
          over_seeds(row,
                     [&](const Json& seed) {
                       return number_at(seed["tasks"].value(one.key, Json()), "accuracy");
                     }),
          2));
    }
    cells.push_back(text_cell(fmt::format("{}", row.seeds.size())));
    cells.push_back(paper("best_loss", 4));
    for (const Benchmark& one : kBenchmarks) cells.push_back(paper(one.published, 2));
    out.rows.push_back(std::move(cells));
    if (const auto limit = number_at(*row.seeds.front(), "limit")) {
      limits.insert(
          fmt::format("{}: the first {} questions of each benchmark only", row.optimizer, *limit));
    }
  }
  const auto differences = differences_of_rows(rows);
  if (differences.empty()) out.mark_best();
  out.drop_empty_columns();
  out.notes = {
      "Mean and sample deviation over seeds; accuracy in percent. The paper's table 5 is for "
      "Qwen3.5-9B on GSM8K's training questions, with three seeds."};
  out.notes.insert(out.notes.end(), limits.begin(), limits.end());
  out.notes.insert(out.notes.end(), differences.begin(), differences.end());
  return out;
}

}  // namespace rode::lab
