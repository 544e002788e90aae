// SPDX-License-Identifier: Apache-2.0
// Decides which jobs a step may touch, from the flags that measuring left.
#include "backend/backend.h"

namespace rode {

bool close_gate(JobList& jobs, bool refuse_all) {
  bool refused = false, bad_gradient = false;
  jobs.for_each([&](const JobBase& job) {
    if (!job.active) return;
    bad_gradient = bad_gradient || !job.finite;
    refused = refused || !job.weight_finite || (refuse_all && !job.finite);
  });
  if (refused || !bad_gradient) return refused;
  jobs.for_each([&](const JobBase& bad) {
    if (bad.finite) return;
    jobs.for_each([&](JobBase& job) {
      if (job.parameter == bad.parameter) job.active = false;
    });
  });
  return false;
}

}  // namespace rode
