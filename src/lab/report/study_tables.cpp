// SPDX-License-Identifier: Apache-2.0
// Differences from a base: the intervention, the component study, and --base.
#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lab/report/tables.h"
#include "rode/error.h"

namespace rode::lab {
namespace {

// Three columns: the difference over the seeds that both have, with its standard error, its degrees
// of freedom, and the number of these seeds.
void add_difference(std::vector<Cell>& row, const OptimizerSummary& optimizer,
                    const OptimizerSummary& base, const Metric& metric) {
  const auto found = difference_over_seeds(optimizer.by_seed(metric.key), base.by_seed(metric.key));
  if (&optimizer == &base || !found) {
    row.insert(row.end(), 3, Cell{});
    return;
  }
  row.push_back(difference_cell(found->difference, metric.digits, metric.scale));
  row.push_back(Cell{.value = found->difference.freedom, .digits = 1});
  row.push_back(Cell{.value = static_cast<double>(found->seeds), .digits = 0});
}

Column difference_column(const std::string& base) {
  return {.name = "difference to " + base, .error_name = "se"};
}

constexpr const char* kErrors =
    "The number after ± is the sample deviation over seeds. A difference is over the seeds that "
    "both rows have (seeds in common); from three of them on it has its standard error for unequal "
    "variances (Welch, as of independent samples: it does not use that the seeds are the same) and "
    "the degrees of freedom.";

// The row of a study: the optimizer, its twin as published, or both.
std::vector<const OptimizerSummary*> variants(const Comparison& comparison,
                                              const std::string& name) {
  std::vector<const OptimizerSummary*> found;
  for (const OptimizerSummary& one : comparison.optimizers) {
    if (without_twin(one.name) == name) found.push_back(&one);
  }
  return found;
}

bool is_study(const PublishedStudy& study, const Comparison& comparison) {
  return !variants(comparison, study.base).empty() &&
         std::any_of(study.marks.begin(), study.marks.end(),
                     [&](const std::string& name) { return !variants(comparison, name).empty(); });
}

const OptimizerSummary* base_of(const PublishedStudy& study, const Comparison& comparison) {
  const OptimizerSummary* plain = comparison.best_of(study.base);
  return plain != nullptr ? plain : variants(comparison, study.base).front();
}

Cell published_difference(const PublishedStudy& study, const std::string& task,
                          const std::string& name, const Metric& metric) {
  const auto value = published().find({study.table}, task, "final_loss", name);
  const auto base = published().find({study.table}, task, "final_loss", study.base);
  Cell cell{.digits = study.table == 3 ? 3 : metric.digits, .sign = true};
  if (value && base && without_twin(name) != study.base) cell.value = value->mean - base->mean;
  return cell;
}

Table study_table(const PublishedStudy& study, const Comparison& comparison) {
  const Metric metric = metric_of(comparison);
  const std::string task = published().task_of(study.table);
  const OptimizerSummary& base = *base_of(study, comparison);
  Table out{.name = study.name,
            .title = fmt::format("{}: {}", study.title, comparison.title),
            .columns = {{"variant"}}};
  for (const std::string& name : study.columns) out.columns.push_back({name});
  out.columns.push_back({metric.name, metric.better});
  out.columns.push_back(difference_column(base.label));
  out.columns.push_back({"degrees of freedom"});
  out.columns.push_back({"seeds in common"});
  out.columns.push_back({"seeds"});
  out.columns.push_back({"paper: final loss"});
  out.columns.push_back({"paper: difference"});
  const int digits = study.table == 3 ? 3 : 4;  // as printed there
  for (const auto& [name, words] : study.rows) {
    for (const OptimizerSummary* one : variants(comparison, name)) {
      std::vector<Cell> row = {text_cell(one->label)};
      for (const std::string& word : words) row.push_back(text_cell(word));
      row.push_back(outcome_cell(*one, one->of(metric.key), metric.digits, metric.scale));
      add_difference(row, *one, base, metric);
      row.push_back(text_cell(one->seeds()));
      row.push_back(
          published_cell(published().find({study.table}, task, "final_loss", one->name), digits));
      row.push_back(published_difference(study, task, one->name, metric));
      out.rows.push_back(std::move(row));
    }
  }
  out.mark_best();
  out.notes = {kErrors};
  const std::vector<std::string> differences = protocol_differences(comparison, task);
  if (!differences.empty()) {
    out.notes.push_back(fmt::format("The paper's table {} is its task {}. Differences: {}.",
                                    study.table, task, fmt::join(differences, "; ")));
  }
  return out;
}

}  // namespace

Table difference_table(const Comparison& comparison, const std::string& base) {
  const OptimizerSummary* reference = comparison.find(base);
  if (reference == nullptr) {
    std::vector<std::string> names;
    for (const OptimizerSummary& one : comparison.optimizers) names.push_back(one.label);
    throw Error(ErrorKind::invalid_argument, "report",
                fmt::format("--base '{}' is not an optimizer of the runs on '{}'; expected {}",
                            base, comparison.name, fmt::join(names, ", ")));
  }
  const Metric metric = metric_of(comparison);
  Table out{.name = "differences",
            .title = fmt::format("Differences from {}: {}", reference->label, comparison.title),
            .columns = {{"optimizer"},
                        {metric.name, metric.better},
                        difference_column(reference->label),
                        {"degrees of freedom"},
                        {"seeds in common"},
                        {"seeds"}}};
  for (const OptimizerSummary& one : comparison.optimizers) {
    std::vector<Cell> row = {text_cell(one.label),
                             outcome_cell(one, one.of(metric.key), metric.digits, metric.scale)};
    add_difference(row, one, *reference, metric);
    row.push_back(text_cell(one.seeds()));
    out.rows.push_back(std::move(row));
  }
  out.mark_best();
  out.notes = {kErrors};
  return out;
}

std::vector<Table> study_tables(const Comparison& comparison) {
  std::vector<Table> tables;
  for (const PublishedStudy& study : published().studies) {
    if (is_study(study, comparison)) tables.push_back(study_table(study, comparison));
  }
  return tables;
}

}  // namespace rode::lab
