// SPDX-License-Identifier: Apache-2.0
// Products along one mode of a row-major tensor, cut into tasks by shape alone.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cpu/thread_pool.h"
#include "backend/host/soap_step.h"

namespace rode::cpu {

using host::ModeView;

// Y = X with the mode multiplied by Q^T (into the basis whose vectors are Q's columns) or
// by Q (back).
void rotate(Team& team, const ModeView& view, const float* q, bool into, const float* x, float* y);

// Upper triangle of the extent x extent contraction of X with itself over all other modes.
// `scratch` has room for mode_gram_floats(view), aligned to 8 bytes.
void mode_gram(Team& team, const ModeView& view, const float* x, float* scratch, float* gram);
std::size_t mode_gram_floats(const ModeView& view);

// Y = X with index order[j] of the mode at j.
void permute(Team& team, const ModeView& view, const std::int32_t* order, const float* x, float* y);

}  // namespace rode::cpu
