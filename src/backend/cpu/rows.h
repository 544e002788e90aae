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
// scratch. W is read where `weighted`; with `tangent` O is the part of X that is orthogonal to W,
// else X itself.
rules::NormalizedRows normalize_rows(Team& team, const RowAverages& rows, double beta,
                                     const float* x, const Weights& weight,
                                     const Geometry& geometry, bool weighted, bool tangent,
                                     const RowScratch& scratch);

}  // namespace rode::cpu
