// SPDX-License-Identifier: Apache-2.0
// Jobs as device memory holds them: pointers and constants, slices, scalars and results; and
// the addresses of all these tables, as kernels are given them.
//
// Every array "over jobs" counts as JobList::for_each does: rode, muon, soap, adafactor,
// element. Matrices come first there, so the index of a matrix is the index of its job.
#pragma once

#include <cstdint>

#include "backend/cuda/device/arrays.h"
#include "backend/cuda/tables/control.h"
#include "rode/optim/common.h"
#include "rules/element_rules.h"
#include "rules/host_device.h"
#include "rules/matrix_step.h"
#include "rules/muon_rule.h"
#include "rules/rode_rule.h"
#include "rules/row_radius_rule.h"
#include "rules/row_rule.h"

namespace rode::cuda {

// What passes/measure.cu sums of a job besides <g,g>.
enum class Measure : std::int32_t {
  gradient,  // nothing
  buffer,    // <B,B>, <B,g>
  three,     // and with a third array T: <T,T>, <B,T>, <g,T>
};

// Over jobs. Everything that depends on where tensors lie is here: a graph of the caller's has
// this table to itself, and shares the others.
struct JobEntry {
  WeightView weight;
  ArrayView grad;
  // Matrices: momentum, previous gradient; element rules: theirs.
  ArrayView moments[rules::kMostMoments];
  // Of moments[0] where it is int8 (device/int8.cuh); null: it is not.
  float* scales;
  std::int64_t scale_stride;  // scales from row to row
  WeightView third;           // T of Measure::three: the weight, or MARS-M's previous gradient
  std::int64_t rows, cols, stride;
  std::int64_t offset;       // of the first element within the whole tensor
  std::int64_t* step;        // that the gate advances where live: element rules', Adafactor's
  std::int64_t first_slice;  // of the slices of all jobs
  std::int64_t slices;
  // What measuring leaves of it: one sum per slice or, where rows have radii, per row.
  std::int64_t first_sum, sums;
  double most_gg;
  std::int32_t parameter;
  std::int32_t active;
  Measure measure;
  std::int32_t stochastic_state;  // how int8 is rounded
  std::int32_t vector;            // all arrays can be read in aligned runs of four
  std::int32_t slot_vector;       // and those of a matrix together with its slot
};

// One slice of one job; its first element is kSlice * index.
struct SliceEntry {
  std::int32_t job, index;
};

// Rows of the fan-out of one matrix that one block sums (passes/rows.cu, passes/measure.cu), from
// `first` on: this many, by whether they are rows or columns of the matrix as stored.
inline constexpr int kRowsPerBlock = 8, kColumnsPerBlock = 32;
struct RowEntry {
  std::int32_t job, first;
};

// Over matrices (rode, then muon).
struct MatrixEntry {
  // Where Newton-Schulz has it (newton_schulz.h); ns < 0: nowhere, its direction is fixed.
  void* start;
  void* direction;
  void* iterate;  // the conditioned momentum, as Newton-Schulz leaves it
  std::int64_t slot_stride;
  NsDType slot_dtype;
  std::int32_t ns;        // index into start_scale() and sums()
  std::int32_t iterates;  // false: the start is the iterate
  std::int32_t muon;      // which of the two below holds
  rules::RodeConstants rode;
  rules::RodeScalarState state;
  rules::RadiusTarget target;
  rules::MuonConstants muon_constants;
  float* radius;  // normproj and hyperball only
  double scale;   // of the fan-out and fan-in
  // Where rows are normalised; null: they are not.
  float* row_avg_sq;
  rules::MuownState own;     // Muown only
  std::int32_t radii;        // every row of the fan-out has a radius of its own
  std::int64_t first_row;    // within StepView's arrays over rows
  std::int32_t row_columns;  // the fan-out's rows are the columns of the matrix as stored
};

// Whether no run of four elements crosses from one row into the next.
RODE_HOST_DEVICE inline bool fours_stay_in_rows(const JobEntry& job) {
  return job.cols % 4 == 0 || job.rows == 1;
}

// Over element jobs.
struct ElementEntry {
  rules::ElementRules::AnyConstants constants;
  std::int32_t rule;  // index into rules::ElementRules
};

// Over matrices: the scalars of the step in progress.
struct MatrixStep {
  rules::MatrixProducts products;
  rules::RodeScalars rode;
  rules::MuonScalars muon;
  rules::MatrixWrite write;
  double target;               // norm that the start should have
  double inverse_norm;         // U = inverse_norm * W
  std::uint64_t sequence;      // of random bits in this step
  std::uint64_t state_draws;   // the same for int8 state
  rules::NormalizedRows rows;  // where the iterate's rows are normalised
  float on_w, on_x;            // W' = on_w * W + on_x * iterate
  float on_u;                  // or, for row i, on_w * W + F_i (on_x * iterate + on_u * W)
  std::int32_t moves;          // 0: no direction, the iterate is not read
  std::int32_t held;
  std::int32_t cautious;  // on_w is only for elements that the step does not lead away from 0
};

// Of a row that has a radius of its own, from before Newton-Schulz until the weights are written.
struct RowRadius {
  double next;            // RODE's
  rules::MuownRow muown;  // Muown's
};

// Over element jobs: what all elements share in the step in progress.
struct ElementStep {
  rules::ElementRules::AnyCoefficients coefficients;
  std::uint64_t sequence;     // of random bits in this step
  std::uint64_t state_draws;  // the same for int8 state
};

// Over jobs. The gate writes every field (ww, dd, held, failed as 0 unless it knows better);
// the kernels of a job then set ww and dd, and SOAP `failed`. The gate has advanced the step
// counters of live jobs, except SOAP's.
struct JobResult {
  double ww, gg, dd;
  std::int32_t finite, weight_finite;
  std::int32_t live;  // active, not refused, gradient of its parameter good
  std::int32_t held, failed;
  std::int32_t pad;
};

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
  rules::MatrixProducts* measured;  // over slices, then over rows with a radius
  double* formed;                   // one per slice: ||start||^2
  double* moved;                    // two per slice: ||W' - W||^2, ||W||^2
  // Over the rows of all matrices that have something of their rows: first those whose rows have
  // radii, then those whose rows are normalised.
  rules::RowSums* row_sums;
  float* row_factors;
  // Over the rows with a radius.
  RowRadius* row_radii;
  rules::RowForm* row_forms;
  rules::RowWrite<float>* row_writes;
  std::int32_t job_count, matrix_count, element_from, element_count;
  // Whether any momentum is int8: which kernels run.
  std::int32_t int8_matrices, int8_elements;
  // Which kernels of element rules run: bit i where a job has rule i.
  std::uint32_t element_rules;
  // Whether any matrix has cautious decay: which kernel writes them.
  std::int32_t cautious_matrices;
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
