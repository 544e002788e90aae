// SPDX-License-Identifier: Apache-2.0
// `rode theory`: compares every statement of the paper's theory with the library's figure.
#include "lab/theory/theory.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "commands.h"
#include "rode/error.h"
#include "support.h"
#include "validators.h"

namespace rode::cli {
namespace {

namespace theory = lab::theory;

struct TheoryArguments {
  std::uint64_t seed = 1;
  std::string run;
  bool with_run = false;
  bool json = false;
};

const char* sign_of(theory::Side side) { return side == theory::Side::at_most ? "<=" : ">="; }

// JSON has neither infinity nor NaN.
Json finite(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

Json to_json(const theory::Report& report) {
  Json checks = Json::array();
  for (const theory::Check& check : report.checks) {
    Json entry = {{"name", check.name},          {"label", check.label},
                  {"what", check.what},          {"measured", finite(check.measured)},
                  {"side", sign_of(check.side)}, {"bound", finite(check.bound)},
                  {"holds", check.holds},        {"holds_as_printed", check.holds_as_printed}};
    if (check.printed) entry["printed_bound"] = finite(*check.printed);
    if (!check.note.empty()) entry["note"] = check.note;
    checks.push_back(std::move(entry));
  }
  Json constants = Json::array();
  for (const theory::Measured& constant : report.constants) {
    constants.push_back({{"symbol", constant.symbol},
                         {"label", constant.label},
                         {"of", constant.of},
                         {"value", finite(constant.value)}});
  }
  return {{"source", report.source},
          {"all_hold", report.all_hold()},
          {"checks", std::move(checks)},
          {"constants", std::move(constants)}};
}

void print_checks(const theory::Report& report) {
  std::vector<std::vector<std::string>> rows = {
      {"check", "equation", "measured", "", "bound", "result", "statement"}};
  for (const theory::Check& check : report.checks) {
    rows.push_back({check.name, check.label, fmt::format("{:.4g}", check.measured),
                    sign_of(check.side), fmt::format("{:.4g}", check.bound),
                    check.holds ? "holds" : "fails", check.what});
  }
  fmt::print("{}", format_table(rows, rows.front().size()));
}

// One row per constant, one column per optimizer.
void print_constants(const theory::Report& report) {
  std::vector<std::string> columns;
  std::vector<std::string> symbols;
  std::map<std::string, std::map<std::string, double>> values;
  std::map<std::string, std::string> labels;
  for (const theory::Measured& constant : report.constants) {
    if (values[constant.symbol].empty()) symbols.push_back(constant.symbol);
    if (std::find(columns.begin(), columns.end(), constant.of) == columns.end()) {
      columns.push_back(constant.of);
    }
    values[constant.symbol][constant.of] = constant.value;
    labels[constant.symbol] = constant.label;
  }
  std::vector<std::vector<std::string>> rows = {{"constant", "assumption"}};
  rows.front().insert(rows.front().end(), columns.begin(), columns.end());
  for (const std::string& symbol : symbols) {
    std::vector<std::string> row = {symbol, labels[symbol]};
    for (const std::string& of : columns) row.push_back(fmt::format("{:.4g}", values[symbol][of]));
    rows.push_back(std::move(row));
  }
  fmt::print("\nConstants of the assumptions, as measured:\n{}", format_table(rows, 2));
}

void print_differences(const theory::Report& report) {
  std::set<std::string> told;
  for (const theory::Check& check : report.checks) {
    if (check.holds_as_printed) continue;
    if (told.empty()) fmt::print("\nStatements that do not hold as printed in the paper:\n");
    fmt::print("  {} ({}); {}: {:.4g}, in the paper {} {:.4g}\n", check.name, check.label,
               check.what, check.measured, sign_of(check.side),
               check.printed.value_or(check.bound));
    if (told.insert(check.note).second) fmt::print("    {}\n", check.note);
  }
}

void run(const TheoryArguments& arguments) {
  const auto note = [](const std::string& text) {
    fmt::print(stderr, "rode: note: {}\n", on_terminal(text));
  };
  const theory::Report report = arguments.with_run ? theory::check_run(arguments.run, note)
                                                   : theory::check_theory(arguments.seed);
  std::size_t failed = 0;
  for (const theory::Check& check : report.checks) failed += check.holds ? 0 : 1;
  if (arguments.json) {
    fmt::print("{}\n", to_json(report).dump(2));
  } else {
    fmt::print("{}\n\n", on_terminal(report.source));
    print_checks(report);
    print_constants(report);
    print_differences(report);
    fmt::print("\n{} of {} checks hold\n", report.checks.size() - failed, report.checks.size());
  }
  if (failed > 0) {
    throw Error(ErrorKind::unsupported, "theory",
                fmt::format("{} of {} checks fail; see 'fails' in the table and docs/theory.md",
                            failed, report.checks.size()));
  }
}

}  // namespace

void add_theory_command(CLI::App& app) {
  const auto arguments = std::make_shared<TheoryArguments>();
  CLI::App* command = app.add_subcommand(
      "theory", "Check the paper's theory on the library, or its assumptions on a run");
  CLI::Option* seed =
      command
          ->add_option("--seed", arguments->seed, "seed of the problems and the noise (default 1)")
          ->check(whole_number(0));
  CLI::Option* folder = command->add_option(
      "--run", arguments->run,
      "folder of a 'rode train' run with RODE, whose constants are measured instead");
  folder->excludes(seed);
  command->add_flag("--json", arguments->json, "print JSON");
  command->footer(
      "Exit code 0: every check holds; 1: one fails, or a file cannot be read; 2: wrong usage.\n"
      "docs/theory.md explains every check.\n\n"
      "Examples:\n"
      "  rode theory\n"
      "  rode theory --seed 7 --json\n"
      "  rode theory --run runs/tiny-lm/rode-seed1");
  command->callback([=] {
    arguments->with_run = folder->count() > 0;
    run(*arguments);
  });
}

}  // namespace rode::cli
