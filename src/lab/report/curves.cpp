// SPDX-License-Identifier: Apache-2.0
// From log lines to curves.
#include "lab/report/curves.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

namespace rode::lab {
namespace {

constexpr std::size_t kMostPoints = 300;  // of a curve: more than the pixels can show

// Seconds of a step, between the evaluations whose times were written.
class StepTimes {
 public:
  explicit StepTimes(const RunSummary& run) {
    for (const Json& line : run.times) {
      const auto step = number_at(line, "step");
      const auto seconds = number_at(line, "seconds");
      if (step && seconds) seconds_[*step] = *seconds;
    }
  }
  std::optional<double> at(double step) const {
    const auto after = seconds_.lower_bound(step);
    if (after == seconds_.end()) return {};
    if (after->first == step) return after->second;
    if (after == seconds_.begin()) return {};
    const auto before = std::prev(after);
    const double share = (step - before->first) / (after->first - before->first);
    return before->second + share * (after->second - before->second);
  }

 private:
  std::map<double, double> seconds_;
};

void add_run(Curve& curve, const Comparison& comparison, const RunSummary& run,
             const Shown& shown) {
  std::optional<double> average;
  const StepTimes times(run);
  for (const Json& line : run.log) {
    if (text_at(line, "kind") != shown.kind) continue;
    const auto read = number_at(line, shown.key);
    if (!read) continue;
    const double value = shown.scale * (shown.exponential ? std::exp(*read) : *read);
    average = average && shown.smooth ? kSmoothing * *average + (1 - kSmoothing) * value : value;
    const auto step = line["step"].get<std::int64_t>();
    if (step < shown.from) continue;
    const auto place = static_cast<double>(step);
    switch (shown.against) {
      case Against::steps: curve.add(step, place, *average); break;
      case Against::units: curve.add(step, place * comparison.units_per_step(), *average); break;
      case Against::seconds:
        if (const auto seconds = times.at(place)) curve.add(step, *seconds, *average);
        break;
    }
  }
}

class ChartList {
 public:
  explicit ChartList(const Comparison& comparison)
      : comparison_(comparison), shown_(in_charts(comparison)) {}

  void add(const std::string& file, Chart chart, const Shown& shown) {
    if (chart.x_label.empty()) chart.x_label = "step";
    for (const OptimizerSummary* optimizer : shown_) {
      chart.series.push_back(series_of(comparison_, *optimizer, shown));
    }
    if (has_curves(chart)) charts_.emplace_back(file, std::move(chart));
  }
  // The same against what was seen, and against time.
  void add_all(const std::string& file, const Chart& chart, Shown shown) {
    add(file, chart, shown);
    Chart other = chart;
    shown.against = Against::units;
    other.x_label = comparison_.language ? "tokens" : "images";
    const auto titled = [&](const char* axis) {
      // "Training loss by tokens, smoothed"
      const std::size_t comma = std::min(chart.title.find(','), chart.title.size());
      return chart.title.substr(0, comma) + " by " + axis + chart.title.substr(comma);
    };
    other.title = titled(other.x_label.c_str());
    add(file + "_by_" + other.x_label, other, shown);
    shown.against = Against::seconds;
    other.x_label = "seconds";
    other.title = titled("time");
    add(file + "_by_seconds", other, shown);
  }
  NamedCharts charts() { return std::move(charts_); }

 private:
  const Comparison& comparison_;
  std::vector<const OptimizerSummary*> shown_;
  NamedCharts charts_;
};

}  // namespace

void Curve::add(std::int64_t step, double x, double y) {
  At& at = steps_[step];
  at.x.push_back(x);
  at.y.push_back(y);
}

std::vector<ChartPoint> Curve::points() const {
  std::vector<ChartPoint> points;
  const std::size_t stride = steps_.size() / kMostPoints + 1;
  std::size_t index = 0;
  for (const auto& [step, at] : steps_) {
    const bool kept = index % stride == 0 || index + 1 == steps_.size();
    ++index;
    if (!kept) continue;
    const Spread y = spread_of(at.y).value_or(Spread{});
    points.push_back({spread_of(at.x).value_or(Spread{}).mean, y.mean, y.deviation.value_or(0)});
  }
  return points;
}

ChartSeries series_of(const Comparison& comparison, const OptimizerSummary& optimizer,
                      const Shown& shown) {
  ChartSeries series{.name = optimizer.label};
  Curve finished;
  for (const RunSummary& run : optimizer.runs) {
    if (run.finished()) add_run(finished, comparison, run, shown);
    if (!run.diverged()) continue;
    Curve own;
    add_run(own, comparison, run, shown);
    // Kept where it is empty too: the legend then says why there is no curve.
    series.diverged.push_back(own.points());
  }
  series.points = finished.points();
  return series;
}

NamedCharts charts_of(const Comparison& comparison) {
  ChartList list(comparison);
  Chart loss{.title = "Validation loss", .y_label = "loss"};
  loss.line = comparison.lowest_possible_loss();
  if (loss.line) loss.line_label = "lowest possible";
  list.add_all("validation_loss", loss, {.kind = "evaluation", .key = "loss"});
  loss.title = "Validation loss, second half";
  loss.line.reset();  // far below: it would press the curves into one
  list.add("validation_loss_late", loss,
           {.kind = "evaluation", .key = "loss", .from = comparison.steps() / 2});
  if (comparison.language) {
    list.add("validation_perplexity",
             {.title = "Validation perplexity", .y_label = "perplexity", .log_y = true},
             {.kind = "evaluation", .key = "loss", .exponential = true});
  } else {
    list.add_all("validation_accuracy", {.title = "Validation accuracy", .y_label = "accuracy, %"},
                 {.kind = "evaluation", .key = "accuracy", .scale = 100});
    list.add("training_accuracy",
             {.title = "Training accuracy, smoothed", .y_label = "accuracy, %"},
             {.kind = "step", .key = "accuracy", .smooth = true, .scale = 100});
  }
  list.add_all("training_loss", {.title = "Training loss, smoothed", .y_label = "loss"},
               {.kind = "step", .key = "loss", .smooth = true});
  list.add("weight_norm", {.title = "Global weight norm", .y_label = "norm"},
           {.kind = "evaluation", .key = "weight_norm"});
  list.add("gradient_norm", {.title = "Gradient norm, smoothed", .y_label = "norm", .log_y = true},
           {.kind = "step", .key = "gradient_norm", .smooth = true});
  list.add("update_norm", {.title = "Update norm, smoothed", .y_label = "norm", .log_y = true},
           {.kind = "step", .key = "update_norm", .smooth = true});
  list.add("update_ratio",
           {.title = "Update over weight norm, smoothed", .y_label = "ratio", .log_y = true},
           {.kind = "step", .key = "update_ratio", .smooth = true});
  return list.charts();
}

Chart rates_chart(const Comparison& comparison) {
  Chart chart{.title = "Final validation loss by rate", .x_label = "lr", .y_label = "loss"};
  chart.log_x = true;
  chart.markers = true;
  std::vector<std::string> names;
  for (const OptimizerSummary& one : comparison.optimizers) {
    if (std::find(names.begin(), names.end(), one.name) == names.end()) names.push_back(one.name);
  }
  for (const std::string& name : names) {
    std::map<double, std::optional<Spread>> best;
    for (const OptimizerSummary& one : comparison.optimizers) {
      if (one.name != name) continue;
      const double lr = one.lr();
      if (!(lr > 0)) continue;
      std::optional<Spread>& there = best[lr];
      const auto loss = one.of("final_loss");
      if (loss && (!there || loss->mean < there->mean)) there = loss;
    }
    if (best.size() < 2) continue;
    ChartSeries series{.name = name};
    for (const auto& [lr, loss] : best) {
      if (loss) {
        series.points.push_back({lr, loss->mean, loss->deviation.value_or(0)});
      } else {  // no run was finished: a cross at the upper edge
        series.diverged.push_back({{lr, std::numeric_limits<double>::max(), 0}});
      }
    }
    chart.series.push_back(std::move(series));
  }
  return chart;
}

}  // namespace rode::lab
