// SPDX-License-Identifier: Apache-2.0
// Subcommands that are Python: `rode sweep ...` is `python -m rode sweep ...`.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace rode::cli {

// $RODE_PYTHON, or python3.
std::string python_program();

// Their words are Python's, and never seen by the parser of the others.
bool is_python_command(std::string_view name);
// The same process continues as Python: signals, output and exit code are its own. Throws where
// Python or a package that it needs is missing.
[[noreturn]] void run_python_command(const std::string& name, const std::vector<std::string>& rest);

}  // namespace rode::cli
