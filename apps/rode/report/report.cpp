// SPDX-License-Identifier: Apache-2.0
// `rode report`: tables and figures of runs, from their logs alone.
#include "report/report.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "commands.h"
#include "support.h"

namespace rode::cli {
namespace {

struct ReportArguments {
  std::vector<std::string> folders;
  std::string out;
  std::string base;
  std::vector<std::string> formats;
  bool json = false;
};

std::filesystem::path folder_of(const ReportArguments& arguments) {
  if (!arguments.out.empty()) return arguments.out;
  if (arguments.folders.size() == 1 && !std::filesystem::is_regular_file(arguments.folders[0])) {
    return arguments.folders.front();
  }
  throw UsageError(
      fmt::format("{} folders but no --out; expected a folder for the report, such as --out report",
                  arguments.folders.size()));
}

void tell(const std::string& text) { fmt::print(stderr, "rode: note: {}\n", on_terminal(text)); }

void run_report(const ReportArguments& arguments) {
  const std::filesystem::path out = folder_of(arguments);
  std::set<std::string> formats(arguments.formats.begin(), arguments.formats.end());
  if (formats.empty()) formats = lab::kFormats;
  std::vector<std::filesystem::path> folders(arguments.folders.begin(), arguments.folders.end());
  lab::Report report;
  arguments_as_usage(
      [&] { report = lab::make_report(lab::find_runs(folders, tell), {.base = arguments.base}); });
  for (const lab::RunProblem& problem : report.problems) {
    tell(fmt::format("left out '{}': {}", problem.folder.string(), problem.what));
  }
  const std::vector<std::string> files = lab::write_report(report, out, formats, tell);
  if (arguments.json) {
    fmt::print("{}\n", lab::to_json(report).dump(2));
    return;
  }
  print_report(report);
  fmt::print("Report: {} files in {}\n", files.size(), on_terminal(out.string()));
}

void print_table(const lab::Table& table) {
  const auto in_rows = [&](auto&& test) {
    return std::any_of(table.rows.begin(), table.rows.end(), test);
  };
  std::size_t texts = 1;  // columns before the first number
  while (texts < table.columns.size() &&
         !in_rows([&](const auto& row) { return row[texts].value.has_value(); })) {
    ++texts;
  }
  fmt::print("{}", format_table(lab::to_rows(table), texts));
  if (in_rows([](const auto& row) {
        return std::any_of(row.begin(), row.end(), [](const lab::Cell& cell) { return cell.best; });
      })) {
    fmt::print("* best of its column\n");
  }
  for (const std::string& note : table.notes) fmt::print("{}\n", on_terminal(note));
  fmt::print("\n");
}

}  // namespace

void print_report(const lab::Report& report) {
  for (const lab::Table& table : report.tables) {
    fmt::print("{}\n", table.title);
    print_table(table);
  }
  for (std::size_t i = 0; i < report.comparisons.size(); ++i) {
    const lab::Comparison& comparison = report.comparisons[i];
    const lab::TaskReport& task = report.tasks[i];
    fmt::print("{}\n{}\n", on_terminal(comparison.title), comparison.protocol);
    for (std::size_t t = 0; t < task.tables.size(); ++t) {
      if (t > 0) fmt::print("{}\n", on_terminal(task.tables[t].title));
      print_table(task.tables[t]);
    }
    if (const auto lowest = comparison.lowest_possible_loss()) {
      fmt::print("No model can have an expected loss below {:.4f}.\n", *lowest);
    }
    if (!task.differences.empty()) {
      fmt::print("Differences from the protocol of the paper's task {}:\n", task.paper);
      for (const std::string& text : task.differences) fmt::print("  {}\n", on_terminal(text));
    }
  }
  for (const lab::RunProblem& one : report.not_finished) {
    fmt::print("{} ({})\n", on_terminal(one.what), on_terminal(one.folder.string()));
  }
}

void add_report_command(CLI::App& app) {
  const auto arguments = std::make_shared<ReportArguments>();
  CLI::App* command = app.add_subcommand(
      "report",
      "Make tables and figures from the logs of runs, in one or several folders and tasks");
  command
      ->add_option("DIR", arguments->folders,
                   "folders of runs, which are searched for run.json; also files of 'rode bench "
                   "systems', and results.json of 'rode evaluate'")
      ->required();
  command->add_option("--out", arguments->out,
                      "folder of the report (default: DIR, if only one is given)");
  command->add_option("--base", arguments->base,
                      "optimizer with which the others are compared: also print differences and "
                      "their standard errors");
  command
      ->add_option("--format", arguments->formats,
                   "what to write, separated by commas: html, md, csv, latex, svg, png (default "
                   "all; png needs rsvg-convert or inkscape)")
      ->delimiter(',')
      ->check(CLI::IsMember(lab::kFormats));
  command->add_flag("--json", arguments->json, "print the report as JSON");
  command->footer(
      "Runs with the same task, length, optimizer and options count as seeds of one row. Runs "
      "that\n"
      "diverged are counted but are not part of any mean; damaged runs are listed and left out.\n\n"
      "Exit code 0: written; 1: there is no usable run, or a file cannot be written; 2: wrong "
      "usage.\n\n"
      "Examples:\n"
      "  rode report runs/tiny-lm\n"
      "  rode report runs/wiki-114m --base muon-rms --out report\n"
      "  rode report runs/gpt2 runs/qwen2-114m --out report --format html,csv,latex\n"
      "  rode report runs finetuned/* systems.json --out report\n"
      "  rode report runs --out report --json");
  command->callback([arguments] { run_report(*arguments); });
}

}  // namespace rode::cli
