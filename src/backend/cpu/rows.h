// SPDX-License-Identifier: Apache-2.0
// The rows of an iterate: their sums, and the factors that normalise them.
#pragma once

#include "backend/cpu/thread_pool.h"
#include "backend/jobs.h"
#include "rules/row_rule.h"

namespace rode::cpu {

// Of the matrix that a thread (or team) works on; one per row of the fan-out.
struct RowScratch {
  rules::RowSums* sums = nullptr;
  float* factors = nullptr;
};

// Advances the averages with the iterate `x`, which has no gaps, and leaves the factors F in the
// scratch.
rules::NormalizedRows normalize_rows(Team& team, const RowAverages& rows,
                                     const rules::RowPlan& plan, const float* x,
                                     const Weights& weight, const Geometry& geometry,
                                     const RowScratch& scratch);

}  // namespace rode::cpu
