// SPDX-License-Identifier: Apache-2.0
// What the last step did, computed in passes that it makes anyway.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace rode {

// One matrix (or one block of a split matrix) under RODE; zeros if the step skipped it.
struct MatrixDiagnostics {
  std::string name;     // the parameter's, followed by "[k]" for block k
  double rho = 0;       // radius before the step
  double rho_next = 0;  // radius after it
  double s = 0;         // radial signal <g, U>
  double q = 0;         // norm of the conditioned tangent iterate
  double theta = 0;     // angle
  double gamma = 1;     // SNR damping, 1 without it
  double m_norm = 0;    // norm of the plain tangent momentum
};

// Over every trainable parameter, including the rest, as the paper defines them. A parameter that a
// step skipped counts only in weight_norm; a frozen one not at all.
struct GlobalDiagnostics {
  double weight_norm = 0;   // before the step
  double update_norm = 0;   // ||W' - W||
  double update_ratio = 0;  // update_norm / (weight_norm + 1e-12)
  double gradient_norm = 0;
  int held = 0;  // matrices of norm zero, which have no direction
};

// Of one step that was performed.
struct StepDiagnostics {
  std::int64_t step = 0;  // counts from 0, as steps_done() does
  GlobalDiagnostics global = {};
  std::vector<MatrixDiagnostics> matrices = {};
};

}  // namespace rode
