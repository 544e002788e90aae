// SPDX-License-Identifier: Apache-2.0
// The two backends of `rode step`: same input, same output tensors.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "rode/optimizer.h"
#include "rode/schedule.h"
#include "step/input.h"

namespace rode::cli {

struct StepPlan {
  Method method;
  Routing routing;
  EngineOptions engine;
  Schedule schedule = Schedule::constant();
  std::int64_t steps = 1;
};

struct StepOutcome {
  GlobalDiagnostics global;  // of the last step
  std::size_t state_bytes = 0;
  std::size_t workspace_bytes = 0;
  std::map<std::string, std::int64_t> skipped;  // parameter: number of steps that skipped it
};

// Both write the new weights into the input's copies and list them, state and diagnostics in
// `finish`'s argument, which is called once, when every step has succeeded.
using Finish = std::function<void(const StepOutput&)>;
StepOutcome step_with_engine(const StepInput& input, const StepPlan& plan, const Finish& finish);
StepOutcome step_with_reference(const StepInput& input, const StepPlan& plan, const Finish& finish);

// Throws where a parameter that is stepped has no gradient in some step.
void require_gradients(const StepInput& input, const std::vector<RoutedParameter>& routed,
                       std::int64_t steps);

}  // namespace rode::cli
