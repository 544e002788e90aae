// SPDX-License-Identifier: Apache-2.0
// The passes over one matrix that RODE and Muon share.
#pragma once

#include <cstdint>

#include "backend/backend.h"
#include "backend/cpu/thread_pool.h"
#include "rules/matrix_step.h"

namespace rode::cpu {

// Multiplies a start of `count` elements that has not the norm it should have.
void correct_start(Team& team, double correction, float* x, std::int64_t count);

// The iterate that is written: X without gaps, null where there is none, and the factors of its
// rows, null where rows are not normalised.
struct WrittenIterate {
  const float* x = nullptr;
  const float* factors = nullptr;
  bool columns = false;  // the factors are those of columns
};

// W' = w W + x X, or with factors W' = w W + F (x X + u W); without an iterate W' = w W. Sets the
// job's dd, and with `measure` its ww. `partial` has room for 2 * slice_count(elements) doubles.
void write_back(Team& team, JobBase& job, const Geometry& geometry, const rules::MatrixWrite& write,
                const WrittenIterate& iterate, bool measure, std::int64_t step, double* partial);

}  // namespace rode::cpu
