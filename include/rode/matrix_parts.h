// SPDX-License-Identifier: Apache-2.0
// A matrix whose parts lie with several processes: what each of them needs to step its part.
//
// Momentum and weights are combined element by element, with coefficients that come from sums over
// all parts; Newton-Schulz alone needs the whole matrix. So every process forms the momentum of its
// part and its part of the start X_0, one of them, the owner, conditions the whole start, and every
// process writes the weights of its part:
//   sums of T, B, g over all parts  -> form_parts   -> B', X_0
//   X_0 at the owner                -> its engine   -> Y
//   sums of Y, W over all parts     -> write_parts  -> W'
// Here are the scalars of that; the caller has the arrays and exchanges them.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "rode/diagnostics.h"
#include "rode/method.h"
#include "rode/optimizer.h"

namespace rode {

// A parameter that can be stepped so.
struct PartedMatrix {
  std::string parameter;
  std::int64_t rows = 0, columns = 0;  // as stored
  // T: MARS-M's previous gradient, whose place g takes; else the weights.
  bool previous = false;
  // What conditions a start at its owner, on fp32 or bf16 matrices of this shape: an optimizer
  // whose gradient and momentum are the start, all of it in one memory. Layout: fan-out is the
  // shorter side. Without `weight` its weights are the start, too, which becomes Y = -X. With
  // `weight` they are W, which becomes Y = -(rho / q) X, where rho and q are those of its
  // diagnostics.
  std::string conditioner;
  Settings settings;
  bool weight = false;
};
// From shapes, as planned_state: matrices with Newton-Schulz in bf16 (on this device, where that is
// not said), so that starts and directions lose nothing as bf16; one per parameter, without sums
// over rows, and with momentum in fp32 or bf16.
std::vector<PartedMatrix> parted_matrices(const ParameterGroup& group, Device device);

// Inner products over all parts.
struct PartSums {
  double tt = 0, bt = 0, gt = 0, bb = 0, bg = 0, gg = 0;
};
// State with one element, by key.
using PartScalars = std::map<std::string, double>;

struct PartInput {
  PartSums sums;
  PartScalars scalars;  // before the step
};

// B' = buffer_b B + buffer_g g + buffer_t T;  X_0 = start_b B' + start_g g + start_t T, of norm 1,
// or less where Muon's eps says so.
struct PartForm {
  bool good_weight = true;  // weights and momentum are finite and within what the rule can keep
  bool direction = false;   // there is a start; else W' = w W
  double buffer_b = 0, buffer_g = 0, buffer_t = 0;
  double start_b = 0, start_g = 0, start_t = 0;
  PartScalars scalars;  // after the step
};
// One for each parameter of the group, all of which are matrices that can be stepped so. The
// caller has judged the gradients (finite_gradient of rode/share.h).
std::vector<PartForm> form_parts(const ParameterGroup& group, std::span<const PartInput> inputs);

// X = factor Y; yw = <Y,W>, over all parts.
struct DirectionSums {
  double factor = 0, yw = 0, yy = 0, ww = 0;
};
// W' = w W + y Y.
struct PartWrite {
  bool finite = true;  // what will be written
  double w = 1, y = 0;
  MatrixDiagnostics diagnostics;  // RODE's
};
std::vector<PartWrite> write_parts(const ParameterGroup& group, std::span<const PartInput> inputs,
                                   std::span<const DirectionSums> directions);

}  // namespace rode
