// SPDX-License-Identifier: Apache-2.0
// Statistics over seeds, the table, and what each chart shows.
#include "lab/report/summary.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "core/file_io.h"

namespace rode::lab {
namespace {

constexpr std::size_t kMostPoints = 300;  // of a curve: more than the pixels can show
constexpr double kSmoothing = 0.9;        // of the training loss, as an exponential average

using Curve = std::map<std::int64_t, std::vector<double>>;  // step -> one value per seed

// What of the log a curve shows; smoothed curves begin at their first value.
struct Shown {
  std::string kind;
  std::string key;
  bool smooth = false;
  std::int64_t from = 0;
};

void add_run(Curve& curve, const RunSummary& run, const Shown& shown) {
  std::optional<double> average;
  for (const Json& line : run.log) {
    if (line.value("kind", "") != shown.kind || !line.contains(shown.key)) continue;
    if (!line[shown.key].is_number()) continue;
    const double value = line[shown.key];
    average = average && shown.smooth ? kSmoothing * *average + (1 - kSmoothing) * value : value;
    const std::int64_t step = line.value("step", std::int64_t{0});
    if (step >= shown.from) curve[step].push_back(*average);
  }
}

std::vector<ChartPoint> points_of(const Curve& curve) {
  std::vector<ChartPoint> points;
  const std::size_t stride = curve.size() / kMostPoints + 1;
  std::size_t index = 0;
  for (const auto& [step, values] : curve) {
    const bool kept = index % stride == 0 || index + 1 == curve.size();
    ++index;
    if (!kept) continue;
    const Spread spread = spread_of(values).value_or(Spread{});
    points.push_back({static_cast<double>(step), spread.mean, spread.deviation.value_or(0)});
  }
  return points;
}

// The mean of the runs that were finished, as in the table; each that diverged by itself.
ChartSeries series_of(const OptimizerSummary& optimizer, const Shown& shown) {
  ChartSeries series{.name = optimizer.name};
  Curve finished;
  for (const RunSummary& run : optimizer.runs) {
    if (!run.diverged()) {
      add_run(finished, run, shown);
      continue;
    }
    Curve own;
    add_run(own, run, shown);
    // Kept where it is empty too: the legend then says why there is no curve.
    series.diverged.push_back(points_of(own));
  }
  series.points = points_of(finished);
  return series;
}

std::string cell(const std::optional<Spread>& spread, double scale, int digits) {
  if (!spread) return "-";
  std::string text = fmt::format("{:.{}f}", spread->mean * scale, digits);
  if (spread->deviation) text += fmt::format(" ± {:.{}f}", *spread->deviation * scale, digits);
  return text;
}

std::int64_t last_step(const Comparison& comparison) {
  std::int64_t last = 0;
  for (const OptimizerSummary& optimizer : comparison.optimizers) {
    for (const RunSummary& run : optimizer.runs) {
      last = std::max(last, run.run.value("steps", std::int64_t{0}));
    }
  }
  return last;
}

}  // namespace

std::optional<Spread> spread_of(const std::vector<double>& values) {
  if (values.empty()) return {};
  const auto count = static_cast<double>(values.size());
  Spread spread;
  for (const double value : values) spread.mean += value / count;
  if (values.size() < 2) return spread;
  double squares = 0;
  for (const double value : values) squares += (value - spread.mean) * (value - spread.mean);
  spread.deviation = std::sqrt(squares / (count - 1));
  return spread;
}

RunSummary read_run(const std::filesystem::path& folder, const Note& note) {
  RunSummary summary;
  summary.run = read_json(folder / "run.json", note);
  summary.result = read_json(folder / "result.json", note);
  const std::filesystem::path log = folder / "log.jsonl";
  summary.log = read_json_lines(log, note);
  // Lines have checksums, and the result tells how much of them there must be.
  const std::uint64_t bytes = std::filesystem::file_size(log);
  const std::uint64_t expected = summary.result.value("log_bytes", bytes);
  if (bytes != expected) {
    throw file_error(
        "report", log.string(),
        fmt::format("has {} bytes; expected {}, as result.json says: lines are missing "
                    "or were added; restore the file from a copy, or repeat the run",
                    bytes, expected));
  }
  summary.seed = summary.run.value("seed", std::uint64_t{0});
  return summary;
}

std::int64_t OptimizerSummary::diverged() const {
  return std::count_if(runs.begin(), runs.end(),
                       [](const RunSummary& run) { return run.diverged(); });
}

std::optional<Spread> OptimizerSummary::of(const std::string& key) const {
  std::vector<double> values;
  for (const RunSummary& run : runs) {
    if (!run.diverged() && run.result.contains(key)) values.push_back(run.result.at(key));
  }
  return spread_of(values);
}

std::optional<double> Comparison::lowest_possible_loss() const {
  for (const OptimizerSummary& optimizer : optimizers) {
    for (const RunSummary& run : optimizer.runs) {
      if (run.result.contains("lowest_possible_loss")) return run.result.at("lowest_possible_loss");
    }
  }
  return {};
}

Json to_json(const Comparison& comparison) {
  Json json = {
      {"task", comparison.task}, {"title", comparison.title}, {"protocol", comparison.protocol}};
  if (const auto lowest = comparison.lowest_possible_loss()) json["lowest_possible_loss"] = *lowest;
  json["optimizers"] = Json::array();
  for (const OptimizerSummary& optimizer : comparison.optimizers) {
    Json entry = {{"name", optimizer.name}, {"diverged", optimizer.diverged()}};
    for (const char* key : {"final_loss", "best_loss", "final_accuracy", "best_accuracy",
                            "weight_norm", "seconds", "peak_memory_bytes", "state_bytes"}) {
      const auto spread = optimizer.of(key);
      if (!spread) continue;
      entry[key]["mean"] = spread->mean;
      if (spread->deviation) entry[key]["sd"] = *spread->deviation;
    }
    entry["options"] = optimizer.runs.front().run.at("options");
    entry["runs"] = Json::array();
    for (const RunSummary& run : optimizer.runs) entry["runs"].push_back(run.result);
    json["optimizers"].push_back(std::move(entry));
  }
  return json;
}

std::vector<std::vector<std::string>> summary_table(const Comparison& comparison) {
  const auto lowest = comparison.lowest_possible_loss();
  std::vector<std::string> head = {"optimizer", "final loss", "best loss"};
  if (lowest) head.emplace_back("above lowest");
  if (!comparison.language) head.emplace_back("best accuracy %");
  for (const char* name : {"global norm", "seconds", "memory MB", "state MB", "seeds"}) {
    head.emplace_back(name);
  }
  std::vector<std::vector<std::string>> rows = {head};
  for (const OptimizerSummary& optimizer : comparison.optimizers) {
    std::vector<std::string> row = {optimizer.name, cell(optimizer.of("final_loss"), 1, 4),
                                    cell(optimizer.of("best_loss"), 1, 4)};
    if (lowest) {
      auto above = optimizer.of("final_loss");
      if (above) above->mean -= *lowest;
      row.push_back(above ? fmt::format("{:.4f}", above->mean) : "-");
    }
    if (!comparison.language) row.push_back(cell(optimizer.of("best_accuracy"), 100, 2));
    row.push_back(cell(optimizer.of("weight_norm"), 1, 2));
    row.push_back(cell(optimizer.of("seconds"), 1, 1));
    row.push_back(cell(optimizer.of("peak_memory_bytes"), 1e-6, 0));
    row.push_back(cell(optimizer.of("state_bytes"), 1e-6, 2));
    const std::int64_t failed = optimizer.diverged();
    row.push_back(failed == 0 ? fmt::format("{}", optimizer.runs.size())
                              : fmt::format("{}, {} diverged", optimizer.runs.size(), failed));
    rows.push_back(std::move(row));
  }
  return rows;
}

std::map<std::string, Chart> charts_of(const Comparison& comparison) {
  std::map<std::string, Chart> charts;
  const auto add = [&](const std::string& file, Chart chart, const Shown& shown) {
    chart.x_label = "step";
    for (const OptimizerSummary& optimizer : comparison.optimizers) {
      chart.series.push_back(series_of(optimizer, shown));
    }
    if (has_curves(chart)) charts[file] = std::move(chart);
  };
  Chart loss{.title = "Validation loss", .y_label = "loss"};
  loss.line = comparison.lowest_possible_loss();
  loss.line_label = "lowest possible";
  add("validation_loss", loss, {"evaluation", "loss"});
  loss.title = "Validation loss, second half";
  add("validation_loss_late", loss, {"evaluation", "loss", false, last_step(comparison) / 2});
  if (!comparison.language) {
    add("validation_accuracy", {.title = "Validation accuracy", .y_label = "share"},
        {"evaluation", "accuracy"});
  }
  add("training_loss", {.title = "Training loss, smoothed", .y_label = "loss"},
      {"step", "loss", true});
  add("weight_norm", {.title = "Global weight norm", .y_label = "norm"},
      {"evaluation", "weight_norm"});
  add("gradient_norm", {.title = "Gradient norm, smoothed", .y_label = "norm", .log_y = true},
      {"step", "gradient_norm", true});
  add("update_ratio",
      {.title = "Update over weight norm, smoothed", .y_label = "ratio", .log_y = true},
      {"step", "update_ratio", true});
  return charts;
}

}  // namespace rode::lab
