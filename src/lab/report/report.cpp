// SPDX-License-Identifier: Apache-2.0
// Puts a report together.
#include "lab/report/report.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lab/report/matrix_charts.h"
#include "lab/report/published.h"
#include "lab/report/tables.h"
#include "rode/error.h"

namespace rode::lab {
namespace {

// What run.json has besides what defines a run: version, commit, chip, digests.
std::vector<std::string> recorded_of(const Comparison& comparison) {
  const std::set<std::string> known = {"format",  "task", "optimizer", "method",
                                       "options", "seed", "steps",     "warmup"};
  std::vector<std::pair<std::string, std::set<std::string>>> values;
  for (const OptimizerSummary& optimizer : comparison.optimizers) {
    for (const RunSummary& one : optimizer.runs) {
      for (const auto& [key, value] : one.run.items()) {
        if (known.count(key) > 0) continue;
        auto at = std::find_if(values.begin(), values.end(),
                               [&key = key](const auto& entry) { return entry.first == key; });
        if (at == values.end()) at = values.insert(values.end(), {key, {}});
        at->second.insert(value.is_string() ? value.get<std::string>() : value.dump());
      }
      const std::string device = text_at(one.result, "device");
      if (device.empty()) continue;
      auto at = std::find_if(values.begin(), values.end(),
                             [](const auto& entry) { return entry.first == "device"; });
      if (at == values.end()) at = values.insert(values.end(), {"device", {}});
      at->second.insert(device);
    }
  }
  std::vector<std::string> out;
  for (const auto& [key, all] : values) {
    out.push_back(fmt::format("{}: {}", key, fmt::join(all, ", ")));
  }
  return out;
}

TaskReport report_on(const Comparison& comparison, const ReportOptions& options) {
  TaskReport out;
  out.paper = published().match(comparison);
  Table results = results_table(comparison, out.paper);
  const bool beside =
      std::any_of(results.columns.begin(), results.columns.end(),
                  [](const Column& column) { return column.name.starts_with("paper: "); });
  if (beside) out.differences = protocol_differences(comparison, out.paper);
  out.recorded = recorded_of(comparison);
  out.tables.push_back(std::move(results));
  if (!options.base.empty() && comparison.find(options.base) != nullptr) {
    out.tables.push_back(difference_table(comparison, options.base));
  }
  for (Table& table : study_tables(comparison)) out.tables.push_back(std::move(table));
  for (Table table : {rates_table(comparison), systems_table(comparison, out.paper)}) {
    if (!table.rows.empty()) out.tables.push_back(std::move(table));
  }
  out.charts = charts_of(comparison);
  if (Chart rates = rates_chart(comparison); has_curves(rates)) {
    out.charts.emplace_back("rates", std::move(rates));
  }
  for (auto& chart : matrix_summaries(comparison)) out.charts.push_back(std::move(chart));
  out.grids = matrix_grids(comparison);
  out.not_drawn = comparison.optimizers.size() - in_charts(comparison).size();
  return out;
}

std::vector<RunProblem> not_finished(const std::vector<Comparison>& all) {
  std::vector<RunProblem> out;
  for (const Comparison& comparison : all) {
    for (const OptimizerSummary& optimizer : comparison.optimizers) {
      for (const RunSummary& run : optimizer.runs) {
        if (run.finished()) continue;
        std::string what = fmt::format("{} seed {}: unfinished", optimizer.label, run.seed);
        if (run.diverged()) {
          what = fmt::format("{} seed {}: diverged at step {}", optimizer.label, run.seed,
                             run.number("steps").value_or(0));
          const std::string why = text_at(run.result, "what");
          if (!why.empty()) what += " (" + why + ")";
        }
        out.push_back({run.folder, what});
      }
    }
  }
  return out;
}

}  // namespace

std::string Report::title() const {
  if (comparisons.size() == 1) return comparisons.front().task;
  if (comparisons.empty()) return "tables";
  return fmt::format("{} tasks and protocols", comparisons.size());
}

Report make_report(FoundRuns found, const ReportOptions& options) {
  Report report;
  report.comparisons = compare_runs(found, options.titles);
  report.problems = std::move(found.problems);
  const bool has_files = !found.systems.empty() || !found.evaluations.empty();
  if (report.comparisons.empty() && !has_files) {
    throw Error(ErrorKind::unsupported, "report",
                report.problems.empty()
                    ? "no run was found: no folder has a run.json; expected runs of 'rode train', "
                      "'rode compare' or 'rode sweep', systems.json of 'rode bench systems' or "
                      "results.json of 'rode evaluate'"
                    : fmt::format("no run can be used; the first problem: {}",
                                  report.problems.front().what));
  }
  if (!options.base.empty() && !report.comparisons.empty() &&
      std::none_of(report.comparisons.begin(), report.comparisons.end(),
                   [&](const auto& one) { return one.find(options.base) != nullptr; })) {
    difference_table(report.comparisons.front(), options.base);  // throws
  }
  for (const Comparison& comparison : report.comparisons) {
    report.tasks.push_back(report_on(comparison, options));
  }
  if (report.comparisons.size() > 1) {
    for (Table table : {main_table(report.comparisons), norms_table(report.comparisons),
                        transfer_table(report.comparisons)}) {
      if (!table.rows.empty()) report.tables.push_back(std::move(table));
    }
  }
  if (!found.evaluations.empty()) {
    report.tables.push_back(fine_tuning_table(found.evaluations, report.problems));
  }
  for (std::size_t i = 0; i < found.systems.size(); ++i) {
    Table table = bench_systems_table(found.systems[i]);
    if (i > 0) table.name += fmt::format("-{}", i + 1);
    report.tables.push_back(std::move(table));
  }
  report.not_finished = not_finished(report.comparisons);
  return report;
}

std::vector<std::string> reading_notes(const Report& report) {
  std::vector<std::string> notes = {
      "Mean and sample deviation over the seeds that were finished; bands in the curves are one "
      "deviation. The best mean of a column is bold.",
      "A run that diverged is not part of any mean; its curve is thin and ends in a cross, at the "
      "edge where it leaves the others' range.",
      fmt::format("As in the paper, only training loss, training accuracy, gradient and update "
                  "figures of single steps are smoothed (exponential average, {:g} of the last "
                  "value; the paper does not give its own); validation, accuracy, norms and all "
                  "tables are as logged.",
                  kSmoothing)};
  const auto has_grids = [](const TaskReport& task) { return !task.grids.empty(); };
  if (std::any_of(report.tasks.begin(), report.tasks.end(), has_grids)) {
    notes.emplace_back(
        "Radius and angle of a matrix are as logged at evaluations and in the step before each; "
        "curves of single matrices are means over seeds.");
  }
  return notes;
}

}  // namespace rode::lab
