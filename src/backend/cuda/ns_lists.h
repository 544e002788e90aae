// SPDX-License-Identifier: Apache-2.0
// Cuts the products of a chunk into work items and deals them to clusters.
#pragma once

#include "backend/cuda/ns_plan.h"

namespace rode::cuda {

enum class ListKind { gram, square, apply };

// Items of every matrix of the chunk.
WorkList make_list(const Chunk& chunk, ListKind kind, const PlanOptions& options);

}  // namespace rode::cuda
