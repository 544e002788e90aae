// SPDX-License-Identifier: Apache-2.0
// The parts of `rode data`: each adds itself below it.
#pragma once

#include <CLI/CLI.hpp>

#include "rode/error.h"
#include "support.h"

namespace rode::cli {

void add_data_tokens_command(CLI::App& data);
void add_data_info_command(CLI::App& data);
void add_data_get_command(CLI::App& data);

// Runs `work`; what the library calls an invalid argument came from the command line.
template <class Work>
void arguments_as_usage(Work&& work) {
  try {
    work();
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::invalid_argument) throw UsageError(error.what());
    throw;
  }
}

}  // namespace rode::cli
