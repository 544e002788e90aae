// SPDX-License-Identifier: Apache-2.0
// Theorem 1: averages of squared components over long runs, and how they scale with rates and
// noise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "lab/theory/check.h"
#include "lab/theory/constants.h"
#include "lab/theory/trace.h"

namespace rode::lab::theory {

// One long run of a sweep: its averages, and what its bounds are made of.
struct SweepRun {
  Trace trace = {};  // without its steps, which are dropped once they are averaged
  double mean_radial = 0, mean_momentum = 0, mean_error = 0;  // over all steps
  double late_radial = 0, late_momentum = 0, late_error = 0,
         late_tangent = 0;  // over the last third
  double steps = 0;
  Turn turn = {};
  double start_potential = 0;  // Phi_1, with the smallest value of f, 0, for Phi_inf
};

struct Sweep {
  std::vector<SweepRun> runs = {};
  // Of all runs together, as the theorem has one set; without those that are not inside.
  Constants constants = {};
};

// What is not as the theorem assumes; only tests set it.
struct SweepBreak {
  double bias = 0;  // of every element of g
  // The deviation of the noise, of (lr, lr_rho, sigma), where the runs say sigma.
  std::function<double(double, double, double)> noise = {};
  bool fixed_radius = false;  // where the runs say lr_rho
};
// Rates lr 0.04, 0.01, 0.0025 and lr_rho 0.02, 0.01, 0.005, noise 0, 0.05, 0.1, 0.2 around a
// middle.
Sweep run_sweep(std::uint64_t seed, Reproject reproject, std::size_t steps,
                const SweepBreak& broken = {});

std::vector<Check> theorem_1(const Sweep& sweep);

}  // namespace rode::lab::theory
