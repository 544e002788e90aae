// SPDX-License-Identifier: Apache-2.0
// A task as text.
#pragma once

#include <string>

#include "lab/task/task.h"

namespace rode::lab {

// A task file with every value written out, which parse_task reads as the same task.
std::string to_toml(const Task& task);

}  // namespace rode::lab
