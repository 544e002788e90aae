// SPDX-License-Identifier: Apache-2.0
// A subcommand that this build does not have: still listed, with an error that names the remedy.
#pragma once

#include <string>

#include <CLI/CLI.hpp>

#include "rode/error.h"

namespace rode::cli {

inline void add_absent_command(CLI::App& app, const char* name, const char* help,
                               const std::string& remedy) {
  CLI::App* command = app.add_subcommand(name, help);
  command->allow_extras();
  command->callback([remedy] { throw Error(ErrorKind::unsupported, "lab", remedy); });
}

}  // namespace rode::cli
