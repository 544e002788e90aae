// SPDX-License-Identifier: Apache-2.0
// The engine and the reference side by side.
#include "support/side_by_side.h"

#include <cmath>
#include <cstdio>
#include <cstring>

#include "support/tested_optimizer.h"

namespace rode::testing {
namespace {

std::vector<double> widen(const Values& values) { return {values.begin(), values.end()}; }

reference::Treatment treatment_of(const Problem& problem) {
  reference::Treatment treatment;
  treatment.matrix = problem.route != Route::rest && problem.shape.size() >= 2;
  treatment.in_out = problem.layout == Layout::in_out;
  treatment.blocks = problem.blocks;
  treatment.experts = problem.experts;
  return treatment;
}

double at(const ConstTensorView& view, std::size_t i) {
  switch (view.dtype) {
    case DType::f32: return static_cast<double>(static_cast<const float*>(view.data)[i]);
    case DType::i64: return static_cast<double>(static_cast<const std::int64_t*>(view.data)[i]);
    default: throw Error(ErrorKind::dtype, "test", "state that is neither F32 nor I64");
  }
}

}  // namespace

Problem correlated_problem(std::uint64_t seed, const Extents& shape, std::size_t steps,
                           double correlation) {
  Correlated made = correlated(seed, shape, steps, correlation);
  return {.shape = shape, .weight = std::move(made.weight), .gradients = std::move(made.gradients)};
}

reference::Settings settings_of(const Method& method) {
  reference::Settings settings;
  for (const OptionInfo& option : method.options()) settings[option.key] = option.value;
  return settings;
}

EngineRun run_engine(const Method& method, const Problem& problem, EngineOptions engine) {
  EngineRun run;
  run.weight = problem.weight;
  const Shape shape = shape_of(problem.shape);
  test::Optimizer optimizer({{.name = kName,
                              .value = view(run.weight.data(), shape),
                              .grad = {},
                              .layout = problem.layout,
                              .experts = problem.experts}},
                            test::in_fp32(method), {.route = problem.route, .overrides = {}},
                            std::move(engine));
  for (const Values& g : problem.gradients) {
    optimizer.bind_grad(0, view(g.data(), shape));
    optimizer.step(problem.multiplier);
    run.diagnostics.push_back(optimizer.matrix_diagnostics());
  }
  run.state = state_of(optimizer, kName);
  return run;
}

reference::State state_of(const rode::Optimizer& optimizer, const std::string& name) {
  reference::State state;
  const std::string prefix = "state." + name + ".";
  for (const TensorEntry& entry : optimizer.state()) {
    if (!entry.name.starts_with(prefix)) continue;
    reference::Tensor tensor;
    tensor.shape.assign(entry.view.shape.dims().begin(), entry.view.shape.dims().end());
    for (std::size_t i = 0; i < static_cast<std::size_t>(entry.view.numel()); ++i)
      tensor.data.push_back(at(entry.view, i));
    state[entry.name.substr(prefix.size())] = std::move(tensor);
  }
  return state;
}

ReferenceRun continue_reference(const Method& method, const Problem& problem, const Values& weight,
                                reference::State state, std::size_t skip) {
  const reference::Settings settings = settings_of(method);
  const std::string name(method.name());
  reference::Tensor w{problem.shape, widen(weight)};
  ReferenceRun run;
  for (std::size_t k = skip; k < problem.gradients.size(); ++k) {
    const reference::Tensor g{problem.shape, widen(problem.gradients[k])};
    run.diagnostics.push_back(
        reference::step(name, settings, treatment_of(problem), w, g, state, problem.multiplier));
  }
  run.weight = std::move(w.data);
  run.state = std::move(state);
  return run;
}

ReferenceRun run_reference(const Method& method, const Problem& problem) {
  const reference::Tensor w{problem.shape, widen(problem.weight)};
  const reference::Settings settings = settings_of(method);
  const reference::Treatment treatment = treatment_of(problem);
  reference::State state =
      reference::initial_state(std::string(method.name()), settings, treatment, w);
  if (treatment.matrix) reference::set_starts(settings, {{&w, treatment, &state}});
  return continue_reference(method, problem, problem.weight, std::move(state), 0);
}

Agreement compare(const Problem& problem, const Values& engine, const std::vector<double>& oracle,
                  double tol) {
  double error = 0, moved = 0;
  for (std::size_t i = 0; i < oracle.size(); ++i) {
    const double e = static_cast<double>(engine[i]) - oracle[i];
    const double d = oracle[i] - static_cast<double>(problem.weight[i]);
    error += e * e;
    moved += d * d;
  }
  const auto steps = static_cast<double>(problem.gradients.size());
  return {std::sqrt(error), tol * std::sqrt(moved) + steps * kUnitRounding * norm(problem.weight)};
}

Judge::~Judge() {
  if (cases_ == 0) return;
  std::printf("    %d cases; worst: %s at %.3g of the bound\n", cases_, worst_.c_str(), ratio_);
  ::testing::Test::RecordProperty("cases", cases_);
  ::testing::Test::RecordProperty("worst", worst_ + " " + std::to_string(ratio_));
}

::testing::AssertionResult Judge::agrees(const std::string& label, const Agreement& agreement) {
  ++cases_;
  const double ratio = agreement.ratio();
  if (!(ratio <= ratio_)) {
    ratio_ = ratio;
    worst_ = label;
  }
  if (agreement.error <= agreement.bound) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << label << ": the engine is " << agreement.error << " from the reference; the bound is "
         << agreement.bound << " (" << ratio << " of it)";
}

Agreement agreement_of(const Method& method, const Problem& problem, double tol) {
  return compare(problem, run_engine(method, problem).weight, run_reference(method, problem).weight,
                 tol);
}

double effect(const Method& changed, const Method& plain, const Problem& problem, double tol) {
  const std::vector<double> other = run_reference(plain, problem).weight;
  const Values rounded(other.begin(), other.end());
  return compare(problem, rounded, run_reference(changed, problem).weight, tol).ratio();
}

}  // namespace rode::testing
