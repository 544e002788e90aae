// SPDX-License-Identifier: Apache-2.0
// The page: tables, curves, and the options that made them, in one file that needs no other.
#include <algorithm>

#include <fmt/format.h>

#include "core/file_io.h"
#include "lab/base/embedded.h"
#include "lab/report/html_chart.h"
#include "lab/report/report.h"
#include "rode/version.h"

namespace rode::lab {
namespace {

constexpr std::size_t kMostOpenGrids = 4;  // of a task; the others are folded

constexpr std::string_view kAngle = "angle-";

std::string_view page_part(std::string_view name) {
  for (const EmbeddedFile& file : embedded_files()) {
    if (file.name == name) return file.text;
  }
  return {};
}

// Of the curves; those that are not drawn have none.
std::vector<std::string> samples_of(const Comparison& comparison) {
  const std::vector<const OptimizerSummary*> shown = in_charts(comparison);
  Chart names;
  for (const OptimizerSummary* optimizer : shown)
    names.series.push_back({.name = optimizer->label});
  const std::vector<LegendEntry> legend = legend_of(names);
  std::vector<std::string> samples;
  for (const OptimizerSummary& one : comparison.optimizers) {
    const auto at = std::find(shown.begin(), shown.end(), &one);
    samples.push_back(
        at == shown.end() ? "" : html_sample(legend[static_cast<std::size_t>(at - shown.begin())]));
  }
  return samples;
}

std::string paragraph(const std::string& text, std::string_view about = "about") {
  return fmt::format("<p class=\"{}\">{}</p>\n", about, escape_markup(text));
}

std::string list_html(std::string_view summary, const std::vector<std::string>& items) {
  std::string out =
      fmt::format("<details class=\"about\"><summary>{}</summary>\n<ul>\n", escape_markup(summary));
  for (const std::string& item : items) out += fmt::format("<li>{}</li>\n", escape_markup(item));
  return out + "</ul></details>\n";
}

std::string titled_table(const Table& table, std::string_view heading) {
  std::string out = fmt::format("<{0}>{1}</{0}>\n", heading, escape_markup(table.title));
  out += to_html(table);
  for (const std::string& note : table.notes) out += paragraph(note);
  return out;
}

std::string options_html(const Comparison& comparison) {
  std::string out =
      "<details class=\"about\"><summary>Options and task</summary>\n<dl "
      "class=\"options\">\n";
  for (const OptimizerSummary& optimizer : comparison.optimizers) {
    std::string values;
    for (const auto& [key, value] : optimizer.run().at("options").items()) {
      values += fmt::format("{}={} ", key, value.get<std::string>());
    }
    out += fmt::format("<dt>{} <span>({})</span></dt><dd><code>{}</code></dd>\n",
                       escape_markup(optimizer.label),
                       escape_markup(text_at(optimizer.run(), "method")), escape_markup(values));
  }
  return out + fmt::format("</dl>\n<pre><code>{}</code></pre></details>\n",
                           escape_markup(comparison.run().at("task").dump(2)));
}

std::string charts_html(const TaskReport& task) {
  std::string out;
  if (task.charts.empty()) return paragraph("No run has enough evaluations for a curve.");
  out += "<div class=\"charts\">\n";
  for (const auto& [file, chart] : task.charts) out += html_figure(chart);
  out += "</div>\n";
  // First those that have angles too: of the optimizers that move radius and direction apart.
  std::set<std::string> with_angles;
  for (const auto& [file, grid] : task.grids) {
    if (file.starts_with(kAngle)) with_angles.insert(file.substr(kAngle.size()));
  }
  std::size_t opened = 0;
  for (const bool first : {true, false}) {
    for (const auto& [file, grid] : task.grids) {
      if ((with_angles.count(file.substr(file.find('-') + 1)) > 0) != first) continue;
      out += html_grid(grid, opened++ < kMostOpenGrids);
    }
  }
  return out;
}

std::string task_html(const Comparison& comparison, const TaskReport& task, bool single) {
  std::string out;
  if (!single) {
    out += fmt::format("<section>\n<h2 id=\"{0}\">{0}</h2>\n", escape_markup(comparison.name));
  }
  out += fmt::format("<p class=\"title\">{}<br>{}</p>\n", escape_markup(comparison.title),
                     escape_markup(comparison.protocol));
  out += to_html(task.tables.front(), samples_of(comparison));
  if (const auto lowest = comparison.lowest_possible_loss()) {
    out += paragraph(fmt::format("No model can have an expected loss below {:.4f}.", *lowest));
  }
  if (!task.differences.empty()) {
    out += list_html(fmt::format("{} differences from the protocol of the paper's task {}",
                                 task.differences.size(), task.paper),
                     task.differences);
  }
  for (std::size_t i = 1; i < task.tables.size(); ++i) out += titled_table(task.tables[i], "h3");
  if (task.not_drawn > 0) {
    out +=
        paragraph(fmt::format("Curves are drawn for the options of each optimizer with the "
                              "lowest mean loss; {} other sets are in the tables alone.",
                              task.not_drawn));
  }
  out += charts_html(task) + options_html(comparison);
  if (!task.recorded.empty()) out += list_html("Recorded with the runs", task.recorded);
  return single ? out : out + "</section>\n";
}

std::string problems_html(std::string_view title, const std::vector<RunProblem>& problems) {
  if (problems.empty()) return {};
  std::string out = fmt::format("<h2>{}</h2>\n<ul class=\"about\">\n", title);
  for (const RunProblem& problem : problems) {
    out +=
        fmt::format("<li><code>{}</code>: {}</li>\n",
                    escape_markup(printable(problem.folder.string())), escape_markup(problem.what));
  }
  return out + "</ul>\n";
}

}  // namespace

std::string to_html(const Report& report) {
  const bool single = report.comparisons.size() == 1;
  std::string out = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\">"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">"
      "<title>{0}: report</title>\n<style>\n{1}</style></head>\n<body>\n<h1>{0}</h1>\n",
      escape_markup(report.title()), page_part("src/lab/report/page.css"));
  for (const Table& table : report.tables) out += titled_table(table, "h2");
  for (std::size_t i = 0; i < report.comparisons.size(); ++i) {
    out += task_html(report.comparisons[i], report.tasks[i], single);
  }
  out += problems_html("Runs that were not finished", report.not_finished);
  out += problems_html("Runs that are left out", report.problems);
  out += "<h2>How to read this</h2>\n";
  for (const std::string& note : reading_notes(report)) out += paragraph(note);
  return out + fmt::format("<footer>rode {}</footer>\n<script>\n{}</script>\n</body>\n</html>\n",
                           version(), page_part("src/lab/report/page.js"));
}

}  // namespace rode::lab
