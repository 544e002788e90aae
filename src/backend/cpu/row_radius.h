// SPDX-License-Identifier: Apache-2.0
// Steps of matrices that have a radius per row: RODE with radius_scope = rows, and Muown.
#pragma once

#include "backend/backend.h"
#include "backend/cpu/newton_schulz.h"
#include "backend/cpu/thread_pool.h"
#include "backend/jobs.h"

namespace rode::cpu {

struct Scratch;

void update_rows(RodeJob& job, const NsPlan& plan, Team& team, const Scratch& scratch,
                 const StepContext& context);
void update_rows(MuonJob& job, const NsPlan& plan, Team& team, const Scratch& scratch,
                 const StepContext& context);

}  // namespace rode::cpu
