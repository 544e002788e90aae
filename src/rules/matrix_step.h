// SPDX-License-Identifier: Apache-2.0
// What the steps of all matrix rules have in common: the sums they begin with, the start of
// Newton-Schulz, and the write-back W' = w W + x X of its result, the iterate X.
#pragma once

#include <cmath>

#include "rode/optim/common.h"
#include "rules/host_device.h"
#include "rules/newton_schulz_rule.h"

namespace rode::rules {

// Inner products of the buffer B, the gradient g and a third array T: the weight of RODE and of
// constrained Muon, the previous gradient of MARS-M. What a rule does not need stays 0.
struct MatrixProducts {
  double tt = 0, bt = 0, gt = 0, bb = 0, bg = 0, gg = 0;

  RODE_HOST_DEVICE MatrixProducts& operator+=(const MatrixProducts& part) {
    tt += part.tt;
    bt += part.bt;
    gt += part.gt;
    bb += part.bb;
    bg += part.bg;
    gg += part.gg;
    return *this;
  }
};

// ||start|| is to be this, as Newton-Schulz wants it; 1 where the start is itself the iterate.
RODE_HOST_DEVICE inline double start_target(Coefficients set, bool iterates) {
  return iterates ? 1 / ns_margin(set) : 1.0;
}

// A start's norm is predicted from inner products. Where it is a small difference of large terms
// the prediction is off: then the start that was reached is multiplied by this, else by 1. The
// rule says what its start's norm should be: start_norm(constants).
enum class StartNorm {
  exact,    // the target
  at_most,  // or less
};
RODE_HOST_DEVICE inline double start_correction(StartNorm wanted, double target, double reached) {
  constexpr double slack = 1e-6;  // what rounding explains
  const bool off = wanted == StartNorm::at_most ? reached > target * (1 + slack)
                                                : std::abs(reached / target - 1) > slack;
  return off ? target / reached : 1.0;
}

// Whether the matrix moves along its start; where not, there is no iterate, and its sums and x are
// 0.
RODE_HOST_DEVICE inline bool start_moves(bool direction, double reached) {
  return direction && reached > 0;
}

// Of the iterate X, or of a part of it: t = <X,U> and xx = ||X||^2. Muon's direction U is W itself.
struct IterateSums {
  double t = 0, xx = 0;
};

// A start that is not iterated is tangent and of norm 1 by construction.
RODE_HOST_DEVICE inline IterateSums unconditioned_sums() { return {0, 1}; }

// Whether a step writes a matrix's weights. RODE leaves one that is held alone: it is not even
// rounded.
RODE_HOST_DEVICE inline bool writes_weights(bool rode, bool held) { return !rode || !held; }

// W' = w W + x X; q and theta are RODE's. As it stands: a matrix that is held. With rows that were
// normalised, W' = w W + F_i (x X + u W) for row i (row_rule.h). Cautious: w holds for the elements
// that x X does not lead away from 0, the others keep their weight (cautious_decay.h); u is 0 then.
struct MatrixWrite {
  double w = 1, x = 0, q = 0, theta = 0, u = 0;
  bool cautious = false;
};

// Of rows that were normalised, O' in place of the iterate (row_rule.h).
struct NormalizedRows {
  double t_w = 0;  // O = X - t_w W
  double ow = 0;   // <O',W>
  double oo = 0;   // ||O'||^2
};

// What a step knows of the iterate when it writes the weights; write_back(constants, ...) of each
// rule chooses among it.
struct KnownIterate {
  bool moves = false;                    // start_moves
  IterateSums measured;                  // where the rule needs sums and the iterate was measured
  const NormalizedRows* rows = nullptr;  // null: rows were not normalised
};

// The coefficients as a rule has chosen them, for the iterate that there is.
RODE_HOST_DEVICE inline MatrixWrite of_iterate(MatrixWrite write, const KnownIterate& iterate) {
  if (!iterate.moves) write.x = 0;
  if (iterate.rows != nullptr) write.u = -write.x * iterate.rows->t_w;
  return write;
}

// What Newton-Schulz has to do with a matrix's direction U as a whole, besides its iterations. Each
// rule has its sphere_plan(constants, normalized); `normalized`: the rows of the iterate are
// normalised afterwards, and the sums that this makes are used instead.
struct SpherePlan {
  bool given;   // iterates may be projected on their way: U is needed
  bool summed;  // the write-back needs <X,U> and ||X||^2; CUDA makes them wherever U is given
};

}  // namespace rode::rules
