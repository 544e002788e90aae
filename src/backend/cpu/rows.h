// SPDX-License-Identifier: Apache-2.0
// The rows of an iterate: their sums, and the factors that normalise them.
#pragma once

#include "backend/cpu/thread_pool.h"
#include "backend/jobs.h"
#include "rules/row_radius_rule.h"
#include "rules/row_rule.h"

namespace rode::cpu {

// One row of a matrix that has a radius per row (row_radius.cpp).
struct RowWork {
  rules::MatrixProducts products;
  rules::RowForm form;
  rules::RowWrite<double> write;
  rules::RodeTangent tangent;  // RODE's, and its next radius
  double next;
  rules::MuownRow muown;  // Muown's
};

// Of the matrix that a thread (or team) works on; one per row of the fan-out.
struct RowScratch {
  rules::RowSums* sums = nullptr;
  float* factors = nullptr;
  RowWork* work = nullptr;  // where a row has a radius of its own
};

// The sums over the rows of the iterate `x`, which has no gaps; those with W where `weighted`.
void sum_iterate(Team& team, const float* x, const Weights& weight, const Geometry& geometry,
                 bool columns, bool weighted, rules::RowSums* sums);

// Advances the averages with the iterate `x`, which has no gaps, and leaves the factors F in the
// scratch.
rules::NormalizedRows normalize_rows(Team& team, const RowAverages& rows,
                                     const rules::RowPlan& plan, const float* x,
                                     const Weights& weight, const Geometry& geometry,
                                     const RowScratch& scratch);

}  // namespace rode::cpu
