// SPDX-License-Identifier: Apache-2.0
// Decides which jobs a step may touch, from the flags that measuring left, and judges its end.
#include "rules/gate.h"

#include "backend/backend.h"

namespace rode {

bool close_gate(JobList& jobs, bool refuse_all) {
  bool refused = false, bad_gradient = false;
  jobs.for_each([&](const JobBase& job) {
    if (!job.active) return;
    bad_gradient = bad_gradient || !job.finite;
    refused = refused || rules::refuses_step({job.finite, job.weight_finite}, refuse_all);
  });
  if (refused || !bad_gradient) return refused;
  jobs.for_each([&](const JobBase& bad) {
    if (bad.finite) return;
    jobs.for_each([&](JobBase& job) {
      job.active = rules::lives(job.active, refused, job.parameter == bad.parameter);
    });
  });
  return false;
}

std::int64_t spoiled_parameter(JobList& jobs) {
  std::int64_t first = -1;
  jobs.for_each([&](const JobBase& job) {
    if (!job.active || rules::ended_finite(job.sums.ww, job.sums.dd)) return;
    const auto parameter = static_cast<std::int64_t>(job.parameter);
    if (first < 0 || parameter < first) first = parameter;
  });
  return first;
}

}  // namespace rode
