// SPDX-License-Identifier: Apache-2.0
// Runs the public optimizer on one matrix and keeps what it was given and what it left.
#include "lab/theory/trace.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "rode/error.h"
#include "rode/optimizer.h"

namespace rode::lab::theory {
namespace {

Values momentum_of(const Optimizer& optimizer) {
  for (const TensorEntry& entry : optimizer.state()) {
    if (!entry.name.ends_with(".momentum")) continue;
    const auto* first = static_cast<const float*>(entry.view.data);
    return {first, first + entry.view.numel()};
  }
  throw Error(ErrorKind::state_mismatch, "theory", "the optimizer has no state 'momentum'");
}

Shape shape_of(Extent extent) {
  return {static_cast<std::int64_t>(extent.rows), static_cast<std::int64_t>(extent.cols)};
}

// Q from a unit direction before and after a step that turned it by theta.
Values iterate_between(const Values& u, const Values& next, const MatrixDiagnostics& seen) {
  const double scale = seen.theta > 0 ? seen.q / std::sin(seen.theta) : 0;
  return sum(scale * std::cos(seen.theta), u, -scale, next);
}

}  // namespace

double Trace::lr_rho() const {
  if (options.radius == Radius::fixed) return 0;
  return options.lr_rho.value_or(0);
}

double Trace::noise_tan_sq() const {
  return noise * noise * static_cast<double>(extent.count() - 1);
}

Turn largest_turn(const Trace& trace) {
  Turn turn{.lr = trace.lr(), .noise = trace.noise};
  for (std::size_t t = 0; t < trace.count(); ++t) {
    const double theta = trace.steps[t].seen.theta;
    if (theta <= turn.theta) continue;
    turn.theta = theta;
    turn.step = t;
  }
  if (trace.overflowed) {
    turn.theta = std::numeric_limits<double>::infinity();
    turn.step = trace.count();
  }
  return turn;
}

Trace follow(const Quadratic& problem, const FollowOptions& options) {
  const Extent extent = problem.extent();
  const Shape shape = shape_of(extent);
  std::vector<float> weight(problem.start().begin(), problem.start().end());
  std::vector<float> estimate(weight.size());
  Optimizer optimizer(
      {{.name = "w", .value = view(weight.data(), shape), .grad = view(estimate.data(), shape)}},
      options.rode, {.route = Route::matrix, .overrides = {}}, {.threads = 1});
  Gaussian gaussian(derive_seed(options.seed, {2}));
  Trace trace{.extent = extent,
              .options = options.rode,
              .noise = options.noise,
              .smoothness = problem.smoothness()};
  for (std::size_t t = 0;; ++t) {
    Step step{.weight = Values(weight.begin(), weight.end())};
    step.gradient = problem.gradient(step.weight);
    step.value = problem.value(step.weight);
    const auto end = [&] {
      trace.steps.push_back(std::move(step));
      return trace;
    };
    if (t == options.steps) return end();
    for (std::size_t i = 0; i < estimate.size(); ++i) {
      const double error = options.noise > 0 ? options.noise * gaussian.next() : 0;
      estimate[i] = static_cast<float>(step.gradient[i] + options.bias + error);
    }
    step.estimate.assign(estimate.begin(), estimate.end());
    try {
      optimizer.step(options.multiplier);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::non_finite) throw;
      trace.overflowed = true;
      return end();
    }
    step.buffer = momentum_of(optimizer);
    step.seen = optimizer.matrix_diagnostics().front();
    trace.steps.push_back(std::move(step));
  }
}

Parts parts_of(const Trace& trace, std::size_t t) {
  const Step& now = trace.steps[t];
  const Step& next = trace.steps[t + 1];
  Parts p;
  p.rho = norm(now.weight);
  p.u = unit(now.weight);
  p.next_u = unit(next.weight);
  p.radial = dot(now.gradient, p.u);
  p.tangent = tangent(now.gradient, p.u);
  p.estimate = dot(now.estimate, p.u);
  p.noise = sum(1, tangent(now.estimate, p.u), -1, p.tangent);
  p.stored = dot(now.buffer, p.u);
  const Values projected = tangent(now.buffer, p.u);
  p.momentum = sum(1 - trace.momentum(), projected, 0, projected);
  p.displacement = sum(1, next.weight, -1, now.weight);
  p.iterate = iterate_between(p.u, p.next_u, now.seen);
  return p;
}

Values iterate_of(const Values& weight, const Values& gradient, Extent extent,
                  RodeOptions options) {
  constexpr double kAngle =
      0.2;  // large compared with the rounding of weights, small compared with pi/4
  std::vector<float> w(weight.begin(), weight.end());
  const std::vector<float> g(gradient.begin(), gradient.end());
  const Values before(w.begin(), w.end());
  options.lr = kAngle / std::sqrt(static_cast<double>(std::min(extent.rows, extent.cols)));
  options.scale = RodeScale::kernel;
  options.radius = Radius::fixed;
  options.snr = false;
  options.splits = "";
  const Shape shape = shape_of(extent);
  Optimizer optimizer(
      {{.name = "w", .value = view(w.data(), shape), .grad = view(g.data(), shape)}}, options,
      {.route = Route::matrix, .overrides = {}}, {.threads = 1});
  optimizer.step();
  return iterate_between(unit(before), unit(Values(w.begin(), w.end())),
                         optimizer.matrix_diagnostics().front());
}

}  // namespace rode::lab::theory
