// SPDX-License-Identifier: Apache-2.0
// A report on runs: what there is to say, and the files that say it.
#pragma once

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lab/report/comparison.h"
#include "lab/report/curves.h"
#include "lab/report/table.h"

namespace rode::lab {

// What is shown of one comparison.
struct TaskReport {
  std::string paper = {};                     // the paper's task shown next to it; may be empty
  std::vector<std::string> differences = {};  // to the paper's protocol
  std::vector<std::string> recorded = {};     // what else run.json says of how it was run
  std::vector<Table> tables = {};             // the first has a row per optimizer
  NamedCharts charts = {};
  std::vector<std::pair<std::string, ChartGrid>> grids = {};
  std::size_t not_drawn = 0;  // optimizers, of those that have too many sets of options
};

struct Report {
  std::vector<Comparison> comparisons = {};
  std::vector<TaskReport> tasks = {};  // one for each
  std::vector<Table> tables = {};      // over several
  std::vector<RunProblem> problems = {};
  std::vector<RunProblem> not_finished = {};  // diverged or unfinished, each by itself

  std::string title() const;
};

struct ReportOptions {
  std::string base = {};                           // for differences; empty: none
  std::map<std::string, std::string> titles = {};  // of tasks that are not part of the build
};

// Throws where no run is left, or where none of the tasks has the base.
Report make_report(FoundRuns found, const ReportOptions& options = {});

Json to_json(const Report& report);
Json to_json(const Comparison& comparison);
std::string to_markdown(const Report& report);
std::string to_html(const Report& report);

// What every format says of how its figures were made.
std::vector<std::string> reading_notes(const Report& report);

inline const std::set<std::string> kFormats = {"html", "md", "csv", "latex", "svg", "png"};

// report.html, report.md, report.json, tables/*.csv, tables/*.tex and figures/TASK/*.svg, *.png;
// each appears whole or not at all, and what an earlier report has left of tables and figures is
// removed. PNG needs a converter of the machine (png.h); a failure is reported to `note`. Gives
// the files, relative to the folder.
std::vector<std::string> write_report(const Report& report, const std::filesystem::path& folder,
                                      const std::set<std::string>& formats = kFormats,
                                      const Note& note = {});

}  // namespace rode::lab
