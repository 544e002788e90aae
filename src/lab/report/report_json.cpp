// SPDX-License-Identifier: Apache-2.0
// A report as JSON and as Markdown.
#include <fmt/format.h>

#include "core/file_io.h"
#include "lab/report/published.h"
#include "lab/report/report.h"
#include "rode/version.h"

namespace rode::lab {
namespace {

Json spread_json(const Spread& spread) {
  Json json = {{"mean", spread.mean}};
  if (spread.deviation) json["sd"] = *spread.deviation;
  json["n"] = spread.count;
  return json;
}

Json optimizer_json(const OptimizerSummary& optimizer, bool language) {
  Json entry = {{"name", optimizer.name},
                {"label", optimizer.label},
                {"seeds", optimizer.runs.size()},
                {"diverged", optimizer.diverged()},
                {"unfinished", optimizer.count(RunStatus::unfinished)}};
  for (const char* key : {"final_loss", "best_loss", "final_accuracy", "best_accuracy",
                          "weight_norm", "seconds", "peak_memory_bytes", "state_bytes"}) {
    if (const auto spread = optimizer.of(key)) entry[key] = spread_json(*spread);
  }
  const auto perplexity = language ? optimizer.perplexity("final_loss") : std::optional<Spread>();
  if (perplexity) entry["final_perplexity"] = spread_json(*perplexity);
  entry["options"] = optimizer.run().at("options");
  entry["runs"] = Json::array();
  for (const RunSummary& run : optimizer.runs) entry["runs"].push_back(run.result);
  return entry;
}

Json table_json(const Table& table) {
  Json rows = Json::array();
  for (const auto& row : table.rows) {
    Json entry = Json::object();
    for (std::size_t c = 0; c < row.size(); ++c) {
      const Column& column = table.columns[c];
      const Cell& cell = row[c];
      if (cell.value) {
        entry[column.name] = *cell.value;
        if (cell.deviation) entry[column.name + " " + column.error_name] = *cell.deviation;
      } else if (!cell.text.empty()) {
        entry[column.name] = cell.text;
      }
    }
    rows.push_back(std::move(entry));
  }
  return {{"name", table.name}, {"title", table.title}, {"rows", std::move(rows)}};
}

// Paths need not be UTF-8, JSON must.
std::string valid_text(const std::string& text) {
  const std::string dumped = Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
  return Json::parse(dumped).get<std::string>();
}

Json problems_json(const std::vector<RunProblem>& problems) {
  Json out = Json::array();
  for (const RunProblem& problem : problems) {
    out.push_back(
        {{"folder", valid_text(problem.folder.string())}, {"what", valid_text(problem.what)}});
  }
  return out;
}

std::string markdown_list(const std::vector<RunProblem>& problems) {
  std::string out;
  for (const RunProblem& problem : problems) {
    out += fmt::format("- `{}`: {}\n", printable(problem.folder.string()),
                       escape_markdown(problem.what));
  }
  return out + "\n";
}

std::string markdown_table(const Table& table, std::string_view heading) {
  std::string out =
      fmt::format("{} {}\n\n{}\n", heading, escape_markdown(table.title), to_markdown(table));
  for (const std::string& note : table.notes) out += escape_markdown(note) + "\n\n";
  return out;
}

}  // namespace

Json to_json(const Comparison& comparison) {
  Json json = {{"task", comparison.task},
               {"name", comparison.name},
               {"title", comparison.title},
               {"protocol", comparison.protocol},
               {"steps", comparison.steps()}};
  if (const auto lowest = comparison.lowest_possible_loss()) json["lowest_possible_loss"] = *lowest;
  json["optimizers"] = Json::array();
  for (const OptimizerSummary& optimizer : comparison.optimizers) {
    json["optimizers"].push_back(optimizer_json(optimizer, comparison.language));
  }
  return json;
}

Json to_json(const Report& report) {
  Json json = {{"version", version()}, {"tasks", Json::array()}};
  for (std::size_t i = 0; i < report.comparisons.size(); ++i) {
    const TaskReport& task = report.tasks[i];
    Json entry = to_json(report.comparisons[i]);
    if (!task.differences.empty()) {
      entry["paper"] = {{"task", task.paper}, {"differences", task.differences}};
    }
    entry["tables"] = Json::array();
    for (const Table& table : task.tables) entry["tables"].push_back(table_json(table));
    json["tasks"].push_back(std::move(entry));
  }
  json["tables"] = Json::array();
  for (const Table& table : report.tables) json["tables"].push_back(table_json(table));
  json["not_finished"] = problems_json(report.not_finished);
  json["left_out"] = problems_json(report.problems);
  return json;
}

std::string to_markdown(const Report& report) {
  std::string out = fmt::format("# Report: {}\n\n", escape_markdown(report.title()));
  for (const std::string& note : reading_notes(report)) out += escape_markdown(note) + "\n\n";
  for (const Table& table : report.tables) out += markdown_table(table, "##");
  for (std::size_t i = 0; i < report.comparisons.size(); ++i) {
    const Comparison& comparison = report.comparisons[i];
    const TaskReport& task = report.tasks[i];
    out += fmt::format("## {}\n\n{}\n\n{}.\n\n", escape_markdown(comparison.name),
                       escape_markdown(comparison.title), escape_markdown(comparison.protocol));
    for (std::size_t t = 0; t < task.tables.size(); ++t) {
      out += t == 0 ? to_markdown(task.tables[t]) + "\n" : markdown_table(task.tables[t], "###");
    }
    if (const auto lowest = comparison.lowest_possible_loss()) {
      out += fmt::format("No model can have an expected loss below {:.4f}.\n\n", *lowest);
    }
    if (!task.differences.empty()) {
      out += fmt::format("Differences from the protocol of the paper's task {}:\n\n",
                         escape_markdown(task.paper));
      for (const std::string& text : task.differences) out += "- " + escape_markdown(text) + "\n";
      out += "\n";
    }
    const auto figure = [&](const std::string& file, const std::string& title) {
      out += fmt::format("![{}](figures/{}/{}.svg)\n\n", escape_markdown(title), comparison.name,
                         file);
    };
    for (const auto& [file, chart] : task.charts) figure(file, chart.title);
    for (const auto& [file, grid] : task.grids) figure(file, grid.title);
  }
  if (!report.not_finished.empty()) {
    out += "## Runs that were not finished\n\n" + markdown_list(report.not_finished);
  }
  if (!report.problems.empty()) {
    out += "## Runs that are left out\n\n" + markdown_list(report.problems);
  }
  return out;
}

}  // namespace rode::lab
