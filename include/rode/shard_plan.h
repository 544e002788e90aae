// SPDX-License-Identifier: Apache-2.0
// Who steps what where several processes train one model: the plan, host data alone.
//
// Every rank has all weights and gradients, steps its pieces, and sends them to the others packed
// into one message. Matrices are dealt by the cost of their step, the rest so that messages are
// equally long. The plan depends on its arguments alone: ranks that compute it from the same
// parameters have the same, and `hash` shows where they have not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "rode/method.h"
#include "rode/parameter.h"
#include "rode/routing.h"

namespace rode {

// A tensor, as the plan sees it.
struct ShardItem {
  std::string name;
  std::int64_t bytes = 0;  // of its weights: what its owner sends
  // Its parts of this size may have different owners: experts, elements of an element-wise rule. 0:
  // only one may step it. The last part may be smaller.
  std::int64_t unit_bytes = 0;
  double cost = 0;               // FLOPs of a matrix's step; 0: of the rest
  std::int64_t state_bytes = 0;  // reported, not balanced by
};

// The items of these parameters, from shapes and types alone, as planned_state; none of frozen
// ones. An element-wise rule may be divided, unless a random sequence or int8 blocks would notice.
std::vector<ShardItem> shard_items(std::span<const Parameter> parameters, const Method& method,
                                   const Routing& routing = {});

// FLOPs of a step's Newton-Schulz on one m x n matrix, as the plan counts them.
double newton_schulz_cost(std::int64_t m, std::int64_t n, int iterations);

// What one rank steps of one item.
struct ShardPiece {
  std::size_t item = 0;    // into the items given
  int rank = 0;            // its owner
  std::int64_t first = 0;  // its first byte within the item
  std::int64_t bytes = 0;
  std::int64_t offset = 0;  // within its owner's message
};

struct ShardLoad {
  double cost = 0;
  std::int64_t bytes = 0;  // of weights
  std::int64_t state_bytes = 0;
};

struct ShardPlan {
  std::vector<ShardPiece> pieces;  // by rank, then by item
  std::vector<ShardLoad> loads;    // of each rank, which may be nothing
  // The bytes that each rank sends, those included that fill it up to the longest.
  std::int64_t message_bytes = 0;
  // Where it is cut, so that less memory is needed at a time: message_bytes is the last.
  std::vector<std::int64_t> cuts;
  std::uint64_t hash = 0;  // of the items and of all the above

  int ranks() const { return static_cast<int>(loads.size()); }
  // What arrives at a rank in a step.
  std::int64_t received_bytes() const { return message_bytes * (ranks() - 1); }
  // The largest cost over the mean; 1 where nothing costs anything.
  double cost_ratio() const;
};

struct ShardPlanOptions {
  std::int64_t header_bytes = 16;  // before the pieces, for what ranks send each other
  int most_messages = 3;
  std::int64_t short_message = 64 << 20;  // not cut if it is no longer
};

// Throws Error{invalid_argument} for less than one rank and for negative sizes.
ShardPlan plan_shards(std::span<const ShardItem> items, int ranks,
                      const ShardPlanOptions& options = {});

}  // namespace rode
