// SPDX-License-Identifier: Apache-2.0
// The lab's subcommands in builds without it.
#include "commands.h"
#include "train/absent_command.h"

namespace rode::cli {
namespace {

constexpr const char* kRemedy =
    "this build has no lab; install the Debian packages libtomlplusplus-dev and libjpeg-dev, "
    "configure with RODE_WITH_LAB=ON and build again";

}  // namespace

void add_data_command(CLI::App& app) {
  add_absent_command(app, "data", "Make, inspect and download training data (not in this build)",
                     kRemedy);
}

void add_tasks_command(CLI::App& app) {
  add_absent_command(app, "tasks", "List the lab's tasks, or show one (not in this build)",
                     kRemedy);
}

void add_report_command(CLI::App& app) {
  add_absent_command(app, "report", "Make tables and figures of runs (not in this build)", kRemedy);
}

void add_theory_command(CLI::App& app) {
  add_absent_command(app, "theory", "Check the paper's theory on the library (not in this build)",
                     kRemedy);
}

}  // namespace rode::cli
