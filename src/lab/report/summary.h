// SPDX-License-Identifier: Apache-2.0
// Finished runs of a task, gathered by optimizer: means, sample deviations, curves.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lab/report/chart.h"
#include "lab/run/folder.h"

namespace rode::lab {

struct Spread {
  double mean = 0;
  std::optional<double> deviation;  // of the sample; unset for fewer than two values
};
std::optional<Spread> spread_of(const std::vector<double>& values);  // nothing for no values

struct RunSummary {
  std::uint64_t seed = 0;
  Json run;     // run.json
  Json result;  // result.json
  std::vector<Json> log;

  bool diverged() const { return result.value("status", "") != "finished"; }
};
RunSummary read_run(const std::filesystem::path& folder, const Note& note = {});

struct OptimizerSummary {
  std::string name;
  std::vector<RunSummary> runs;

  std::int64_t diverged() const;
  // Over the runs that were finished, of a number of result.json.
  std::optional<Spread> of(const std::string& key) const;
};

struct Comparison {
  std::string task;
  std::string title;
  std::string protocol = {};  // as it was run
  bool language = true;
  std::vector<OptimizerSummary> optimizers;

  std::optional<double> lowest_possible_loss() const;
};

Json to_json(const Comparison& comparison);
// Rows of text; the first is the header.
std::vector<std::vector<std::string>> summary_table(const Comparison& comparison);
// By the name of their files; only those with a curve to see.
std::map<std::string, Chart> charts_of(const Comparison& comparison);

}  // namespace rode::lab
