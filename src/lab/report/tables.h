// SPDX-License-Identifier: Apache-2.0
// The paper's tables, of what was run.
#pragma once

#include <string>
#include <vector>

#include "lab/report/comparison.h"
#include "lab/report/published.h"
#include "lab/report/table.h"

namespace rode::lab {

// Of one comparison. `paper`: the paper's task whose values are shown next to ours; may be empty.
Table results_table(const Comparison& comparison, const std::string& paper);
Table systems_table(const Comparison& comparison, const std::string& paper);
// Every set of options of the optimizers that have several, the best of each in bold; no rows
// where none has.
Table rates_table(const Comparison& comparison);

// Differences from `base` with their standard errors; throws where the comparison has no such
// optimizer.
Table difference_table(const Comparison& comparison, const std::string& base);
// Tables 3 and 6, where the comparison has their variants.
std::vector<Table> study_tables(const Comparison& comparison);

// Over several comparisons.
Table main_table(const std::vector<Comparison>& all);
Table norms_table(const std::vector<Comparison>& all);
// Optimizers that were run on several language tasks, by the size of the model; no rows where
// there are none.
Table transfer_table(const std::vector<Comparison>& all);

// Of files of other commands. Evaluations that cannot stand in one row are added to `problems`.
Table bench_systems_table(const FoundTable& found);
Table fine_tuning_table(const std::vector<FoundTable>& found, std::vector<RunProblem>& problems);

// The figure by which a task is judged: final loss, or best accuracy of images.
struct Metric {
  std::string key;
  std::string name;
  double scale;
  int digits;
  Better better;
};
Metric metric_of(const Comparison& comparison);

// Mean and deviation, or what became of the runs where none was finished.
Cell outcome_cell(const OptimizerSummary& optimizer, const std::optional<Spread>& spread,
                  int digits, double scale = 1);

}  // namespace rode::lab
