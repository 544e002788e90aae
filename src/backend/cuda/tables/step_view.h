// SPDX-License-Identifier: Apache-2.0
// What the kernels of a step are given: the addresses of all tables, and parts of them.
#pragma once

#include <cstdint>

#include "backend/cuda/tables/control.h"
#include "backend/cuda/tables/entries.h"

namespace rode::cuda {

// Every table of a step, in device memory.
struct StepView {
  Control* control;
  const JobEntry* jobs;
  const MatrixEntry* matrices;
  const ElementEntry* elements;
  MatrixStep* matrix_steps;
  ElementStep* element_steps;
  JobResult* results;
  std::int32_t* live;               // over jobs
  std::int32_t* bad_parameter;      // over parameters: scratch of the gate
  rules::MatrixProducts* totals;    // over jobs: what measure's partial sums add up to
  rules::MatrixProducts* measured;  // over slices
  double* formed;                   // one per slice: ||start||^2
  double* moved;                    // two per slice: ||W' - W||^2, ||W||^2
  // Over the rows of all matrices whose rows are normalised.
  rules::RowSums* row_sums;
  float* row_factors;
  std::int32_t job_count, matrix_count, element_from, element_count;
};

// Part of a table of slices, or of one of matrices.
struct SliceRange {
  const SliceEntry* slices;
  std::int64_t count;
};
struct MatrixRange {
  const std::int32_t* matrices;
  std::int64_t count;
};
struct RowRange {
  const RowEntry* rows;
  std::int64_t count;
};

}  // namespace rode::cuda
