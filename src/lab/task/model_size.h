// SPDX-License-Identifier: Apache-2.0
// How large a task's model is, and whether a machine can hold it, before anything is allocated.
#pragma once

#include <cstdint>

#include "lab/task/task.h"

namespace rode::lab {

inline constexpr std::int64_t kMaxParameters = 1'000'000'000'000;

// Trained numbers of the model, a tied head once. No overflow within the parser's limits.
std::int64_t parameter_count(const ModelSpec& model);

// What the host holds in any case: on the CPU weights and gradients as they are stored; for a GPU
// the weights in fp32, which are drawn on the host. Optimizer state and activations come on top.
std::int64_t least_training_bytes(const Task& task, bool on_cpu);

// Memory that this process may use: the machine's, or less where its control group says so.
std::int64_t machine_bytes();

// Throws where the least that training needs exceeds `available`, with both figures.
void require_memory(const Task& task, bool on_cpu, std::int64_t available);

}  // namespace rode::lab
