// SPDX-License-Identifier: Apache-2.0
// What processes that share one optimizer's work decide alike: who steps what, whether they were
// made alike, and whether a step is made. Host data alone; an adapter moves the messages.
//
//   plan_share     the plan of shard_plan.h over parameter groups, in elements
//   ShareFacts     what each sends the others when its optimizer is made
//   StepReport     what each sends before a step: one sum of numbers
//   finite_gradient, and the texts of refusals: for adapters that judge sums themselves
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rode/error.h"
#include "rode/optimizer.h"
#include "rode/shard_plan.h"

namespace rode {

// What one rank steps of one parameter; elements lie as in memory.
struct SharePiece {
  std::size_t parameter = 0;  // over all groups
  int rank = 0;               // its owner
  std::int64_t first = 0;     // element
  std::int64_t count = 0;     // of elements
  bool whole = true;
  std::int64_t offset = 0;  // bytes, within its owner's message
  // Of a batch of matrices that is divided between them: the elements of one. 0: it is divided
  // between elements.
  std::int64_t unit = 0;

  // Of what is stepped, where the parameter has the shape `whole_shape`.
  Shape shape(const Shape& whole_shape) const;
};

struct SharePlan {
  ShardPlan shards;
  std::vector<SharePiece> pieces;  // by rank, then by parameter
  // Of each parameter: a gradient whose squared norm exceeds it is refused.
  std::vector<double> most_gg;
};

// From shapes, types and options alone. `divisible`: of each parameter over all groups, whether a
// part of it may be stepped by itself; one that is not contiguous in memory may not.
SharePlan plan_share(std::span<const ParameterGroup> groups, int ranks,
                     const std::vector<bool>& divisible, const ShardPlanOptions& options = {});
// Of most_gg: with `zero_start` of the parameters known, whose rule may take less.
std::vector<double> largest_gradients(std::span<const ParameterGroup> groups);
// Throws where options have been set since that a part of a tensor cannot have.
void check_share(const SharePlan& plan, std::span<const ParameterGroup> groups);

// ---- When an optimizer is made -----------------------------------------------------------------

struct ShareFacts {
  std::string error;  // of a rank that could not make its optimizer; the rest is then empty
  std::string version, optimizer, on_non_finite;
  std::vector<std::string> options;     // a line each
  std::vector<std::string> parameters;  // a line each
  std::string plan;                     // its hash

  std::string to_text() const;
  static ShareFacts from_text(std::string_view text);
};

// Of these groups under this plan. `forms`: what else must be equal, one text per parameter.
ShareFacts share_facts(std::span<const ParameterGroup> groups, const SharePlan& plan,
                       OnBadGradient on_non_finite, const std::vector<std::string>& forms);
// What the ranks told, in the words of the first difference; nothing where there is none.
std::optional<Error> difference(std::span<const ShareFacts> told);

// ---- Before a step -----------------------------------------------------------------------------

struct StepReport {
  bool failed = false;          // it cannot begin the step
  std::vector<bool> present;    // of each parameter, whether it has a gradient here
  std::vector<bool> bad;        // whether that is not finite, or too large
  std::uint32_t options = 0;    // a hash of the options as they act in this step
  std::int64_t steps_done = 0;  // below 2^53

  // To be summed over the ranks, number by number.
  std::vector<double> numbers(int rank, int ranks) const;
};

// Whether a gradient is finite and within what the rule can keep: the gate's own judgement.
bool finite_gradient(double gg, double most_gg);

// Of refusals, without the operation. `parts`: of a parameter that lies in parts with several
// ranks.
std::string missing_gradient_text(std::string_view parameter, double present, double absent);
std::string bad_weights_text(std::string_view parameter, bool parts);

// Judges the sums; every rank comes to the same end. Returns the parameters that are left out,
// where bad gradients are skipped and not refused; throws where the step is refused. `names`: of
// the parameters.
std::vector<std::size_t> agree_on_step(std::span<const double> sums, int ranks,
                                       std::span<const std::string> names,
                                       OnBadGradient on_non_finite);

}  // namespace rode
