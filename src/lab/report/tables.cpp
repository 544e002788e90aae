// SPDX-License-Identifier: Apache-2.0
// Tables of one comparison: results, systems cost, rates.
#include "lab/report/tables.h"

#include <algorithm>
#include <cmath>
#include <set>

#include <fmt/format.h>

namespace rode::lab {
namespace {

constexpr double kMega = 1e-6;
constexpr double kGiga = 1e-9;

// Milliseconds of a step by the last speed that a run has noted: evaluations are not part of it.
std::optional<Spread> step_milliseconds(const Comparison& comparison,
                                        const OptimizerSummary& optimizer) {
  std::vector<double> values;
  for (const RunSummary& run : optimizer.runs) {
    if (!run.finished() || run.times.empty()) continue;
    const auto speed = number_at(run.times.back(), "units_per_second");
    if (speed && *speed > 0) values.push_back(1000 * comparison.units_per_step() / *speed);
  }
  return spread_of(values);
}

bool is_on_cuda(const OptimizerSummary& optimizer) {
  return std::all_of(optimizer.runs.begin(), optimizer.runs.end(), [](const RunSummary& run) {
    return text_at(run.result, "device").starts_with("cuda");
  });
}

// Of what is the same in every run: no deviation to speak of.
std::optional<Spread> steady(std::optional<Spread> spread) {
  if (spread && spread->deviation == 0.0) spread->deviation.reset();
  return spread;
}

// Without what the engine allocates itself, as the paper counts.
std::optional<Spread> torch_peak(const OptimizerSummary& optimizer) {
  if (const auto noted = optimizer.of("torch_peak_bytes")) return noted;
  auto peak = optimizer.of("peak_memory_bytes");
  const auto workspace = optimizer.of("workspace_bytes");
  if (!peak || !workspace || !is_on_cuda(optimizer)) return {};
  peak->mean -= workspace->mean;
  return peak;
}

}  // namespace

Metric metric_of(const Comparison& comparison) {
  if (comparison.language) return {"final_loss", "final loss", 1, 4, Better::low};
  return {"best_accuracy", "best accuracy %", 100, 2, Better::high};
}

Cell outcome_cell(const OptimizerSummary& optimizer, const std::optional<Spread>& spread,
                  int digits, double scale) {
  if (spread || optimizer.count(RunStatus::finished) > 0) {
    return spread_cell(spread, digits, scale);
  }
  return text_cell(optimizer.diverged() > 0 ? "diverged" : "unfinished");
}

Table results_table(const Comparison& comparison, const std::string& paper) {
  const auto lowest = comparison.lowest_possible_loss();
  const Metric metric = metric_of(comparison);
  Table out{.name = "results",
            .title = comparison.title,
            .columns = {{"optimizer"},
                        {"final loss", Better::low},
                        {"best loss", Better::low},
                        {"final perplexity", Better::low},
                        {"above lowest"},
                        {"final accuracy %", Better::high},
                        {"best accuracy %", Better::high},
                        {"global norm"},
                        {"seeds"},
                        {"paper: " + metric.name},
                        {"paper: global norm"}}};
  for (const OptimizerSummary& optimizer : comparison.optimizers) {
    const auto final_loss = optimizer.of("final_loss");
    Cell above{.digits = 4};
    if (lowest && final_loss) above.value = final_loss->mean - *lowest;
    const auto perplexity =
        comparison.language ? optimizer.perplexity("final_loss") : std::optional<Spread>();
    out.rows.push_back(
        {text_cell(optimizer.label), outcome_cell(optimizer, final_loss, 4),
         spread_cell(optimizer.of("best_loss"), 4), spread_cell(perplexity, 2), above,
         spread_cell(optimizer.of("final_accuracy"), 2, 100),
         spread_cell(optimizer.of("best_accuracy"), 2, 100),
         spread_cell(optimizer.of("weight_norm"), 2), text_cell(optimizer.seeds()),
         published_cell(published().find({1, 4, 5, 6, 3}, paper, metric.key, optimizer.name),
                        metric.digits),
         published_cell(published().find({2, 4}, paper, "weight_norm", optimizer.name), 1)});
  }
  out.mark_best();
  out.drop_empty_columns();
  return out;
}

Table systems_table(const Comparison& comparison, const std::string& paper) {
  Table out{.name = "systems",
            .title = "Systems cost: " + comparison.title,
            .columns = {{"optimizer"},
                        {"state MB"},
                        {"memory GB"},
                        {"Torch's memory GB"},
                        {"step ms"},
                        {"throughput"},
                        {"run s"},
                        {"paper: state MB"},
                        {"paper: memory GB"},
                        {"paper: step ms"},
                        {"paper: throughput"}}};
  const OptimizerSummary* reference = comparison.best_of("adamw");
  const auto base = reference == nullptr ? std::nullopt : step_milliseconds(comparison, *reference);
  bool any = false;
  for (const OptimizerSummary& optimizer : comparison.optimizers) {
    const auto step = step_milliseconds(comparison, optimizer);
    Cell throughput{.digits = 2};
    if (base && step && step->mean > 0) throughput.value = base->mean / step->mean;
    const auto of_paper = [&](const char* metric, int digits) {
      return published_cell(published().find({7}, paper, metric, optimizer.name), digits);
    };
    out.rows.push_back({text_cell(optimizer.label),
                        outcome_cell(optimizer, steady(optimizer.of("state_bytes")), 2, kMega),
                        spread_cell(optimizer.of("peak_memory_bytes"), 3, kGiga),
                        spread_cell(torch_peak(optimizer), 3, kGiga), spread_cell(step, 2),
                        throughput, spread_cell(optimizer.of("seconds"), 1),
                        of_paper("state_mb", 1), of_paper("peak_gb", 2), of_paper("step_ms", 1),
                        of_paper("throughput", 2)});
    for (const Cell& cell : out.rows.back()) any = any || cell.value;
  }
  if (!any) out.rows.clear();
  out.drop_empty_columns();
  out.notes = {
      "State is what the optimizer keeps. Memory is the peak of the whole process; on CUDA that of "
      "Torch's tensors with the optimizer's workspace. A step is the mean over a run, without "
      "evaluations; throughput is relative to AdamW's."};
  if (!paper.empty()) {
    out.notes.emplace_back(
        "The paper's table 7 was measured on one GPU (RTX 5090 D v2) with micro-batches of 16 x "
        "512 tokens or 64 images, medians of 25 steps, peak of Torch's tensors alone: only the "
        "state is comparable with a run with other batches on another GPU.");
  }
  return out;
}

Table rates_table(const Comparison& comparison) {
  const Metric metric = metric_of(comparison);
  Table out{.name = "rates",
            .title = "Options that were tried: " + comparison.title,
            .columns = {{"optimizer"},
                        {"options"},
                        {metric.name, metric.better},
                        {"best loss", Better::low},
                        {"seeds"}}};
  std::set<std::string> done;
  for (const OptimizerSummary& first : comparison.optimizers) {
    if (first.label == first.name || !done.insert(first.name).second) continue;
    Table part = out;
    part.rows.clear();
    std::vector<const OptimizerSummary*> sets;
    for (const OptimizerSummary& one : comparison.optimizers) {
      if (one.name == first.name) sets.push_back(&one);
    }
    std::stable_sort(sets.begin(), sets.end(),
                     [](const auto* a, const auto* b) { return a->lr() < b->lr(); });
    for (const OptimizerSummary* each : sets) {
      const OptimizerSummary& one = *each;
      const bool differs = one.label.size() > one.name.size();
      part.rows.push_back({text_cell(one.name),
                           text_cell(differs ? one.label.substr(one.name.size() + 1) : ""),
                           outcome_cell(one, one.of(metric.key), metric.digits, metric.scale),
                           spread_cell(one.of("best_loss"), 4), text_cell(one.seeds())});
    }
    part.mark_best();
    out.rows.insert(out.rows.end(), part.rows.begin(), part.rows.end());
  }
  out.notes = {"The best of each optimizer is bold."};
  return out;
}

}  // namespace rode::lab
