// SPDX-License-Identifier: Apache-2.0
// A parsed file as a task. Private to task/: toml++ costs seconds of compilation.
#pragma once

#include <string_view>

#include "lab/base/toml_table.h"
#include "lab/task/task.h"

namespace rode::lab {

inline constexpr std::string_view kTask = "task";  // the operation that errors name

// Scales are read but not tried.
Task read_task(const toml::table& parsed, std::string_view name, std::string_view source);

}  // namespace rode::lab
