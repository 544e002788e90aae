// SPDX-License-Identifier: Apache-2.0
// What a task must allow so that several processes train it.
#pragma once

#include "lab/task/task.h"

namespace rode::lab {

// Throws where the rows of a batch cannot be divided evenly: the global batch is the task's, on any
// number of ranks.
void require_equal_rows(const Task& task, int ranks);

}  // namespace rode::lab
