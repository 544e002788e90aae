// SPDX-License-Identifier: Apache-2.0
// NaN and Inf in the input and the output of `rode step`.
//
// Frozen parameters are neither updated nor checked: they may be masks.
#pragma once

#include <cstdint>

#include "rode/error.h"
#include "step/run.h"

namespace rode::cli {

// Throws if a weight or a state tensor of the file is not finite.
void check_input(const StepInput& input, const Routing& routing);
// Throws if a tensor of the output is not finite, after `done` steps of the plan.
void check_result(const StepInput& input, const StepPlan& plan, const StepOutput& output,
                  std::int64_t done);
// The error of a parameter that is not finite after `done` steps; `what` says where.
Error overflow(std::string_view parameter, std::string_view what, const StepPlan& plan,
               std::int64_t done);

}  // namespace rode::cli
