// SPDX-License-Identifier: Apache-2.0
// The sweep's runs, their averages against the theorem's bounds, and slopes in logarithms.
#include "lab/theory/neighbourhood.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <span>
#include <string>
#include <utility>

#include "lab/theory/geometry.h"

namespace rode::lab::theory {
namespace {

constexpr double kMomentum = 0.5;  // at 0.9 the theorem admits only lr_rho < 0.002 / L^2
constexpr double kLr = 0.01, kLrRho = 0.01, kNoise = 0.1;
// Of a slope over three runs, whose late means vary by a fifth from seed to seed.
constexpr double kSlopeError = 0.2;

struct Point {
  double lr, lr_rho, noise;
};

std::vector<Point> points() {
  std::vector<Point> out;
  for (const double noise : {0.0, kNoise}) {
    for (const double lr : {4 * kLr, kLr, kLr / 4}) out.push_back({lr, kLrRho, noise});
    for (const double lr_rho : {2 * kLrRho, kLrRho / 2}) out.push_back({kLr, lr_rho, noise});
  }
  for (const double noise : {kNoise / 2, 2 * kNoise}) out.push_back({kLr, kLrRho, noise});
  return out;
}

SweepRun average(Trace trace, Constants& constants) {
  SweepRun run{.trace = std::move(trace)};
  run.turn = largest_turn(run.trace);
  const std::size_t count = run.trace.count(), late = count - count / 3;
  run.steps = static_cast<double>(count);
  const double share = 1 / run.steps, late_share = 1 / static_cast<double>(count - late);
  for (std::size_t t = 0; t < count; ++t) {
    const Parts p = parts_of(run.trace, t);
    if (run.turn.inside()) constants.add(run.trace, t, p);
    const Values difference = sum(1, p.momentum, -1, p.tangent);
    const double radial = p.radial * p.radial, momentum = dot(p.momentum, p.momentum);
    const double error = dot(difference, difference);
    if (t == 0) run.start_potential = run.trace.steps[0].value + error / (1 - kMomentum);
    run.mean_radial += share * radial;
    run.mean_momentum += share * momentum;
    run.mean_error += share * error;
    if (t < late) continue;
    run.late_radial += late_share * radial;
    run.late_momentum += late_share * momentum;
    run.late_error += late_share * error;
    run.late_tangent += late_share * dot(p.tangent, p.tangent);
  }
  run.trace.steps.clear();
  return run;
}

// Over the runs that `chosen` picks: the slope of log y in log x.
struct Series {
  std::vector<double> x = {}, y = {};
};
Series series(const Sweep& sweep, const std::function<bool(const Trace&)>& chosen,
              const std::function<double(const Trace&)>& x, double SweepRun::* y) {
  Series out;
  for (const SweepRun& run : sweep.runs) {
    if (!run.turn.inside() || !chosen(run.trace)) continue;
    out.x.push_back(x(run.trace));
    out.y.push_back(run.*y);
  }
  return out;
}

// Assumption 5. The polynomial leaves singular values below 1.2024 if none exceeds 1.25, which the
// guard sees to, and the last projection shortens Q.
std::vector<Check> polar(const Sweep& sweep, const std::string& name) {
  const Constants& c = sweep.constants;
  const Trace& first = sweep.runs.front().trace;
  const auto side = static_cast<double>(std::min(first.extent.rows, first.extent.cols));
  std::vector<Check> out;
  if (first.options.reproject == Reproject::guarded) {
    out.push_back(make_check("theorem_1_iterate", "app:assump:polar",
                             "q_max <= 1.2024 sqrt(n); " + name, c.q_max, Side::at_most,
                             1.2024 * std::sqrt(side)));
  }
  out.push_back(make_check("theorem_1_alignment", "app:assump:polar", "c_NS > 0; " + name,
                           c.alignment, Side::at_least, 0));
  out.back().holds = c.alignment > 0;
  return out;
}

std::vector<Check> bounds(const Sweep& sweep, const std::string& name) {
  Worst average_bound, radial, momentum, error, tangent;
  double smallest = 1;
  std::vector<Turn> turns;
  for (const SweepRun& run : sweep.runs) {
    turns.push_back(run.turn);
    if (!run.turn.inside()) continue;
    const Trace& trace = run.trace;
    const Neighbourhood n = neighbourhood(sweep.constants, trace.momentum(), trace.lr_rho());
    const double bound = n.bound(trace);
    const double radial_rate = n.alpha_rho * trace.lr_rho(), rate = n.alpha_dir * trace.lr();
    smallest = std::min(smallest, n.alpha_rho);
    average_bound.add(radial_rate * run.mean_radial + rate * run.mean_momentum + run.mean_error / 2,
                      bound + run.start_potential / run.steps);
    radial.add(run.late_radial, bound / radial_rate);
    momentum.add(run.late_momentum, bound / rate);
    error.add(run.late_error, 2 * bound);
    tangent.add(run.late_tangent, 2 * bound / rate + 4 * bound);
  }
  const std::string label = "app:thm:neighborhood";
  return {angle("theorem_1_angle", turns, name),
          make_check("theorem_1_rates", label,
                     "sufficiently small lr_rho: the smallest alpha_rho; " + name, smallest,
                     Side::at_least, 0),
          make_check("theorem_1_average", "app:eq:average_bound",
                     "weighted means over the whole run; " + name, average_bound),
          make_check("theorem_1_radial", label, "mean (G^rho)^2 <= eps_rho; " + name, radial),
          make_check("theorem_1_momentum", label, "mean ||M||^2; " + name, momentum),
          make_check("theorem_1_tracking", label, "mean ||M - G^tan||^2; " + name, error),
          make_check("theorem_1_tangent", label, "mean ||G^tan||^2 <= eps_tan; " + name, tangent)};
}

// The bound vanishes with lr where there is no noise: so must the means, at least as fast. Towards
// lr_rho -> 0, and with noise towards lr -> 0 and sigma -> infinity, it grows: no mean may grow
// faster.
std::vector<Check> scaling(const Sweep& sweep, const std::string& name) {
  const auto quiet = [](const Trace& t) { return t.noise == 0 && t.lr_rho() == kLrRho; };
  const auto noisy = [](const Trace& t) { return t.noise == kNoise && t.lr_rho() == kLrRho; };
  const auto middle = [](const Trace& t) { return t.noise == 0 && t.lr() == kLr; };
  const auto rates = [](const Trace& t) {
    return t.lr() == kLr && t.lr_rho() == kLrRho && t.noise > 0;
  };
  const auto rate = [](const Trace& t) { return t.lr(); };
  const auto curvature = [](const Trace& t) { return t.lr() * t.lr() / t.lr_rho(); };
  const auto noise = [](const Trace& t) { return t.noise_tan_sq() / t.lr(); };
  std::vector<Check> out;
  const auto add = [&](const char* what, const Series& s, Side side) {
    if (s.x.size() < 2) return;  // the runs that diverged are named by the check of the angle
    out.push_back(make_check("theorem_1_scaling", "app:thm:neighborhood",
                             std::string(what) + "; " + name, slope(s.x, s.y), side,
                             side == Side::at_least ? 1 - kSlopeError : 1 + kSlopeError));
  };
  add("slope of mean (G^rho)^2 in lr^2 / lr_rho, lr varied, sigma = 0",
      series(sweep, quiet, curvature, &SweepRun::late_radial), Side::at_least);
  add("slope of mean ||G^tan||^2 in lr, sigma = 0",
      series(sweep, quiet, rate, &SweepRun::late_tangent), Side::at_least);
  add("slope of mean (G^rho)^2 in lr^2 / lr_rho, lr_rho varied, sigma = 0",
      series(sweep, middle, curvature, &SweepRun::late_radial), Side::at_most);
  add("slope of mean ||G^tan||^2 in sigma^2 / lr, sigma varied",
      series(sweep, rates, noise, &SweepRun::late_tangent), Side::at_most);
  add("slope of mean ||G^tan||^2 in sigma^2 / lr, lr varied",
      series(sweep, noisy, noise, &SweepRun::late_tangent), Side::at_most);
  return out;
}

}  // namespace

Sweep run_sweep(std::uint64_t seed, Reproject reproject, std::size_t steps,
                const SweepBreak& broken) {
  const Quadratic problem(seed);
  Sweep sweep;
  for (const Point& point : points()) {
    FollowOptions options{
        .rode = {.lr = point.lr,
                 .lr_rho = point.lr_rho,
                 .scale = RodeScale::kernel,
                 .momentum = kMomentum,
                 .radius = Radius::learned,
                 .reproject = reproject,
                 .nesterov = false},
        .steps = steps,
        .noise = broken.noise ? broken.noise(point.lr, point.lr_rho, point.noise) : point.noise,
        .seed = derive_seed(seed, {3, sweep.runs.size()}),
        .bias = broken.bias};
    if (broken.fixed_radius) options.rode.radius = Radius::fixed;
    Trace trace = follow(problem, options);
    trace.noise = point.noise;
    trace.options.radius = Radius::learned;
    sweep.runs.push_back(average(std::move(trace), sweep.constants));
  }
  return sweep;
}

std::vector<Check> theorem_1(const Sweep& sweep) {
  const bool every = sweep.runs.front().trace.options.reproject == Reproject::every;
  const std::string name = every ? "every" : "guarded";
  std::vector<Check> out = polar(sweep, name);
  for (Check& check : bounds(sweep, name)) out.push_back(std::move(check));
  for (Check& check : scaling(sweep, name)) out.push_back(std::move(check));
  return out;
}

}  // namespace rode::lab::theory
