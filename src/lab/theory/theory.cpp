// SPDX-License-Identifier: Apache-2.0
// The problems, rates and noise on which each check runs.
#include "lab/theory/theory.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "lab/theory/alignment.h"
#include "lab/theory/constants.h"
#include "lab/theory/descent.h"
#include "lab/theory/geometry.h"
#include "lab/theory/neighbourhood.h"

namespace rode::lab::theory {
namespace {

constexpr std::size_t kSweepSteps = 4000;  // lr_rho 0.005 has forgotten the start after 2000
constexpr std::size_t kReplicas = 48;      // runs that an expectation is the mean of

const char* name_of(Reproject reproject) {
  return reproject == Reproject::every ? "every" : "guarded";
}

RodeOptions rates(double lr, double lr_rho, Reproject reproject) {
  return {.lr = lr,
          .lr_rho = lr_rho,
          .scale = RodeScale::kernel,
          .momentum = 0.9,
          .radius = Radius::learned,
          .reproject = reproject,
          .nesterov = false};
}

// The runs that meet Assumption 6; a check names the others.
std::vector<Trace> inside(Report& report, std::vector<Trace> traces, const std::string& what) {
  std::vector<Turn> turns;
  for (const Trace& trace : traces) turns.push_back(largest_turn(trace));
  report.add({angle("angle", turns, what)});
  std::erase_if(traces, [](const Trace& trace) { return !largest_turn(trace).inside(); });
  return traces;
}

void add_geometry(Report& report, std::uint64_t seed, Reproject reproject) {
  // Tall for one, wide for the other: a wide matrix is transposed inside.
  const Extent extent = reproject == Reproject::every ? Extent{8, 12} : Extent{12, 8};
  const Quadratic problem(seed, {.extent = extent});
  const std::vector<Trace> kept = inside(
      report,
      {follow(problem,
              {.rode = rates(0.01, 0.01, reproject), .steps = 200, .noise = 0.05, .seed = seed})},
      std::string("sigma = 0.05, ") + name_of(reproject));
  if (kept.empty()) return;
  const Trace& trace = kept.front();
  const Constants c = measure(kept);
  report.add({displacement(trace), displacement_parts(trace), radial_update(trace),
              stored_radial(trace), rotation(trace), leakage(trace, c), tracking_split(trace),
              tracking_step(trace), second_order(trace, c), smoothness(trace)});
}

void add_descent(Report& report, std::uint64_t seed, Reproject reproject) {
  const std::string name = name_of(reproject);
  const auto add = [&](std::vector<Trace> runs, const std::string& what) {
    const std::vector<Trace> traces = inside(report, std::move(runs), what);
    if (traces.empty()) return;
    if (traces.front().noise > 0) report.add({noise_variance(traces)});
    const Constants c = measure(traces);
    report.add({regularity(c, what), radial_descent(traces, c, what),
                tangent_descent(traces, c, what), potential(traces, c, what),
                kinetic(traces, c, what), lyapunov(traces, c, what)});
  };
  const Quadratic problem(seed);
  add({follow(problem, {.rode = rates(0.01, 0.01, reproject), .steps = 200})},
      "sigma = 0, " + name);
  std::vector<Trace> noisy;
  for (std::size_t i = 0; i < kReplicas; ++i) {
    noisy.push_back(follow(problem, {.rode = rates(0.01, 0.001, reproject),
                                     .steps = 80,
                                     .noise = 0.1,
                                     .seed = derive_seed(seed, {4, i})}));
  }
  add(std::move(noisy), "sigma = 0.1, " + name);
  // A radius far below the optimum's, which nothing moves: where L_tan is much larger than L.
  RodeOptions held = rates(0.005, 0, reproject);
  held.radius = Radius::fixed;
  add({follow(Quadratic(seed, {.start_norm = 0.2}), {.rode = held, .steps = 150})},
      "sigma = 0, radius 1/15 of the optimum's, " + name);
}

void add_alignment(Report& report, std::uint64_t seed) {
  report.add({lag()});
  report.add({momentum_weights(0.9, 9, 0.9)});
  const Trace trace =
      follow(Quadratic(seed), {.rode = rates(0.005, 0.005, Reproject::guarded), .steps = 40});
  report.add({radial_alignment(trace), tracking_lag(trace), tangent_alignment(trace),
              alignment_synthesis(trace)});
}

void add_pl(Report& report, std::uint64_t seed) {
  // Two directions without curvature: PL, but neither strongly convex nor with one optimum.
  const Quadratic problem(seed, {.lowest = 0.5, .flat = 2});
  const double mu = problem.pl_constant();
  std::vector<FirstOrder> runs;
  for (const double lr : {0.01, 0.005, 0.0025}) {
    runs.push_back(first_order(follow(problem, {.rode = rates(lr, lr, Reproject::guarded),
                                                .steps = static_cast<std::size_t>(15 / lr)})));
    const FirstOrder& run = runs.back();
    report.add(
        {pl_condition(run, mu), pl_alignment(run, mu), pl_step(run, mu), theorem_2(run, mu)});
  }
  report.add({theorem_2_scaling(runs)});
}

void add_constants(Report& report, const Constants& c, const std::string& of) {
  const auto add = [&](const char* symbol, const char* label, double value) {
    report.constants.push_back({symbol, label, of, value});
  };
  add("c_NS", "app:assump:polar", c.alignment);
  add("q_min", "app:assump:polar", c.q_min);
  add("q_max", "app:assump:polar", c.q_max);
  add("theta_max", "app:assump:angle", c.theta_max);
  add("rho_min", "app:assump:bounded", c.rho_min);
  add("rho_max", "app:assump:bounded", c.rho_max);
  add("G_max", "app:assump:bounded", c.gradient_max);
  add("M_max", "app:assump:bounded", c.momentum_max);
  add("A_max", "app:assump:bounded", c.stored_max);
  add("gamma_min", "app:assump:angle", c.gamma_min);
  add("L_tan", "app:assump:tangent_lip", c.regularity);
}

}  // namespace

bool Report::all_hold() const {
  return std::ranges::all_of(checks, [](const Check& check) { return check.holds; });
}

Report check_theory(std::uint64_t seed) {
  Report report{.source = "seed " + std::to_string(seed)};
  for (const Reproject reproject : {Reproject::guarded, Reproject::every}) {
    add_geometry(report, seed, reproject);
    add_descent(report, seed, reproject);
    const Sweep sweep = run_sweep(seed, reproject, kSweepSteps);
    report.add(theorem_1(sweep));
    add_constants(report, sweep.constants, name_of(reproject));
  }
  add_alignment(report, seed);
  add_pl(report, seed);
  return report;
}

}  // namespace rode::lab::theory
