// SPDX-License-Identifier: Apache-2.0
// Tables over several comparisons: main results, norms, transfer between scales.
#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "lab/report/tables.h"

namespace rode::lab {
namespace {

// Of all comparisons, in the order of their first appearance.
std::vector<std::string> labels_of(const std::vector<Comparison>& all) {
  std::vector<std::string> labels;
  for (const Comparison& comparison : all) {
    for (const OptimizerSummary& one : comparison.optimizers) {
      if (std::find(labels.begin(), labels.end(), one.label) == labels.end()) {
        labels.push_back(one.label);
      }
    }
  }
  return labels;
}

// One row per optimizer, two columns per comparison: ours and the paper's.
template <class Ours, class Papers>
Table by_task(const std::vector<Comparison>& all, Table table, Ours&& ours, Papers&& papers) {
  for (const std::string& label : labels_of(all)) {
    std::vector<Cell> row = {text_cell(label)};
    for (const Comparison& comparison : all) {
      const auto found =
          std::find_if(comparison.optimizers.begin(), comparison.optimizers.end(),
                       [&](const OptimizerSummary& optimizer) { return optimizer.label == label; });
      if (found == comparison.optimizers.end()) {
        row.insert(row.end(), 2, Cell{});
        continue;
      }
      row.push_back(ours(comparison, *found));
      row.push_back(papers(comparison, *found));
    }
    table.rows.push_back(std::move(row));
  }
  table.mark_best();
  table.drop_empty_columns();
  return table;
}

double parameters_of(const Comparison& comparison) {
  for (const OptimizerSummary& optimizer : comparison.optimizers) {
    if (const auto count = optimizer.of("parameters")) return count->mean;
  }
  return 0;
}

}  // namespace

Table main_table(const std::vector<Comparison>& all) {
  Table table{.name = "main_results", .title = "Main results", .columns = {{"optimizer"}}};
  for (const Comparison& comparison : all) {
    const Metric metric = metric_of(comparison);
    table.columns.push_back({fmt::format("{}: {}", comparison.name, metric.name), metric.better});
    table.columns.push_back({fmt::format("{}: paper", comparison.name)});
  }
  return by_task(
      all, std::move(table),
      [](const Comparison& comparison, const OptimizerSummary& optimizer) {
        const Metric metric = metric_of(comparison);
        return outcome_cell(optimizer, optimizer.of(metric.key), metric.digits, metric.scale);
      },
      [](const Comparison& comparison, const OptimizerSummary& optimizer) {
        const Metric metric = metric_of(comparison);
        return published_cell(published().find({1, 4, 5, 6, 3}, published().match(comparison),
                                               metric.key, optimizer.name),
                              metric.digits);
      });
}

Table norms_table(const std::vector<Comparison>& all) {
  Table table{.name = "final_norms", .title = "Final global norm", .columns = {{"optimizer"}}};
  for (const Comparison& comparison : all) {
    table.columns.push_back({comparison.name});
    table.columns.push_back({fmt::format("{}: paper", comparison.name)});
  }
  Table out = by_task(
      all, std::move(table),
      [](const Comparison&, const OptimizerSummary& optimizer) {
        return outcome_cell(optimizer, optimizer.of("weight_norm"), 2);
      },
      [](const Comparison& comparison, const OptimizerSummary& optimizer) {
        return published_cell(
            published().find({2, 4}, published().match(comparison), "weight_norm", optimizer.name),
            1);
      });
  out.notes = {
      "The norm of all trained parameters, including those that AdamW updates; comparable only "
      "within a task, and not ranked."};
  return out;
}

Table transfer_table(const std::vector<Comparison>& all) {
  Table table{.name = "scale_transfer",
              .title = "Transfer between scales",
              .columns = {{"optimizer"},
                          {"task"},
                          {"parameters M"},
                          {"lr"},
                          {"best loss"},
                          {"final loss"},
                          {"global norm"},
                          {"seeds"},
                          {"paper: best loss"},
                          {"paper: final loss"},
                          {"paper: global norm"}}};
  std::vector<const Comparison*> language;
  for (const Comparison& comparison : all) {
    if (comparison.language) language.push_back(&comparison);
  }
  std::stable_sort(language.begin(), language.end(), [](const Comparison* a, const Comparison* b) {
    return parameters_of(*a) < parameters_of(*b);
  });
  std::vector<std::string> names;
  for (const Comparison* comparison : language) {
    for (const OptimizerSummary& one : comparison->optimizers) {
      if (std::find(names.begin(), names.end(), one.name) == names.end()) names.push_back(one.name);
    }
  }
  for (const std::string& name : names) {
    std::vector<std::vector<Cell>> rows;
    std::set<double> sizes;
    for (const Comparison* comparison : language) {
      const std::string paper = published().match(*comparison);
      const double size = parameters_of(*comparison);
      for (const OptimizerSummary& one : comparison->optimizers) {
        if (one.name != name) continue;
        if (size > 0) sizes.insert(size);
        const auto of_paper = [&](const char* metric, int digits) {
          return published_cell(published().find({4, 1, 2}, paper, metric, name), digits);
        };
        Cell millions{.digits = 1};
        if (size > 0) millions.value = size * 1e-6;
        rows.push_back(
            {text_cell(name), text_cell(comparison->name), millions, text_cell(one.option("lr")),
             spread_cell(one.of("best_loss"), 4), outcome_cell(one, one.of("final_loss"), 4),
             spread_cell(one.of("weight_norm"), 2), text_cell(one.seeds()),
             of_paper("best_loss", 4), of_paper("final_loss", 4), of_paper("weight_norm", 1)});
      }
    }
    // Of one size there is nothing to transfer.
    if (sizes.size() > 1) table.rows.insert(table.rows.end(), rows.begin(), rows.end());
  }
  if (!table.rows.empty()) table.drop_empty_columns();
  table.notes = {"Losses are comparable only within a task."};
  return table;
}

}  // namespace rode::lab
