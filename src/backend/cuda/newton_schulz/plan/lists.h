// SPDX-License-Identifier: Apache-2.0
// Cuts the products of a batch into work items and deals them to clusters.
#pragma once

#include <vector>

#include "backend/cuda/newton_schulz/plan/plan.h"

namespace rode::cuda {

// Items of every matrix of the batch, phase after phase. All clusters have the phases in the same
// order, and each waits for the one before it: whoever waits, waits for items that come before its
// own. A cluster that has less of one phase gets more of the next.
WorkList make_list(const Batch& batch, const std::vector<List>& phases, const PlanOptions& options);

// Items of one matrix in a row that a cluster can have under way: a tile put down and one in
// registers for each of the two warpgroups.
inline constexpr int kMostHeld = 4;

// Whether tiles of this list can wait for their matrix's sum without waiting in a circle: every
// cluster has the matrices in the same order, and at most kMostHeld items of each.
bool can_hold(const WorkList& list);

}  // namespace rode::cuda
