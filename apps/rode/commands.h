// SPDX-License-Identifier: Apache-2.0
// The subcommands of `rode`: each adds itself and runs from its own callback.
#pragma once

#include <CLI/CLI.hpp>

namespace rode::cli {

void add_optimizers_command(CLI::App& app);
void add_step_command(CLI::App& app);
void add_bench_command(CLI::App& app);
void add_data_command(CLI::App& app);
void add_tasks_command(CLI::App& app);
void add_train_command(CLI::App& app);
void add_compare_command(CLI::App& app);
void add_report_command(CLI::App& app);
void add_theory_command(CLI::App& app);
// sweep, finetune and evaluate, which are Python: listed here, run before the arguments are parsed.
void add_python_commands(CLI::App& app);

// Below `rode bench`.
void add_bench_systems_command(CLI::App& bench);

// Below `rode data`.
void add_data_tokens_command(CLI::App& data);
void add_data_get_command(CLI::App& data);

}  // namespace rode::cli
