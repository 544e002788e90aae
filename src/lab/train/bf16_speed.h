// SPDX-License-Identifier: Apache-2.0
// Whether bf16 costs time on a CPU instead of saving it.
#pragma once

#include <optional>
#include <string>

#include "lab/task/task.h"

namespace rode::lab {

// A warning where a task asks for bf16 and products in it are slower than in fp32 on this CPU, as
// they are where it has no instructions for them. Measured: which instructions Torch uses depends
// on its version.
std::optional<std::string> slow_bf16_warning(const TrainSpec& train);

}  // namespace rode::lab
