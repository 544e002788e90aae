// SPDX-License-Identifier: Apache-2.0
// The lab's subcommands in builds without it: an error that names the remedy.
#include "commands.h"
#include "rode/error.h"

namespace rode::cli {
namespace {

void add_absent(CLI::App& app, const char* name, const char* help) {
  CLI::App* command = app.add_subcommand(name, help);
  command->allow_extras();
  command->callback([] {
    throw Error(ErrorKind::unsupported, "lab",
                "this build has no lab; install the Debian packages libtomlplusplus-dev and "
                "libjpeg-dev, configure with RODE_WITH_LAB=ON and build again");
  });
}

}  // namespace

void add_data_command(CLI::App& app) {
  add_absent(app, "data", "Make, inspect and download training data (not in this build)");
}

void add_tasks_command(CLI::App& app) {
  add_absent(app, "tasks", "List the lab's tasks, or show one (not in this build)");
}

}  // namespace rode::cli
