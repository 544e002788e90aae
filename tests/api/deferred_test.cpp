// SPDX-License-Identifier: Apache-2.0
// Steps that are only enqueued: what the caller learns and when, and that reading changes nothing.
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "api/support.h"

namespace rode {
namespace {

using test::expect_error;
using test::expect_same;
using test::GuardedArray;
using test::Model;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// A model in the backend's memory under the driver itself, without the checks of
// test::Optimizer after every step.
class Enqueued {
 public:
  explicit Enqueued(const Method& method, EngineOptions engine = {}, DType weights = DType::f32,
                    const std::vector<test::Spec>& specs = test::small_model())
      : model_(specs, weights) {
    engine.device = test::tested_device();
    std::vector<Parameter> parameters = model_.parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      Parameter& p = parameters[i];
      arrays_.push_back(std::make_unique<GuardedArray>(p.value.data, p.value.bytes()));
      p.value.data = arrays_.back()->data();
      grads_.push_back(std::make_unique<GuardedArray>(p.grad.data, p.grad.bytes()));
      p.grad.data = grads_.back()->data();
    }
    optimizer.emplace(parameters, method, Routing{}, std::move(engine));
  }

  // Enqueues a step with the gradients of draw t, with one NaN in parameter `bad`.
  void step(int t, std::optional<std::size_t> bad = {}, double multiplier = 1) {
    model_.draw(t);
    if (bad) model_.grad(*bad).set(model_.grad(*bad).count() - 1, kNaN);
    for (auto& grad : grads_) grad->upload();
    optimizer->step(multiplier);
  }
  test::Bytes weights() {
    for (std::size_t i = 0; i < arrays_.size(); ++i) {
      arrays_[i]->expect_guards_intact();
      arrays_[i]->download(model_.value(i).view().data);
    }
    return model_.weights();
  }

  std::optional<rode::Optimizer> optimizer;

 private:
  Model model_;
  std::vector<std::unique_ptr<GuardedArray>> arrays_, grads_;
};

void expect_same_outcome(Enqueued& a, Enqueued& b) {
  expect_same(a.weights(), b.weights());
  expect_same(test::state_of(*a.optimizer), test::state_of(*b.optimizer));
  EXPECT_EQ(a.optimizer->metadata(), b.optimizer->metadata());
}

// The error of the same step on the CPU.
std::string error_on_the_cpu(const Method& method, std::size_t bad) {
  Model model;
  rode::Optimizer optimizer(model.parameters(), method);
  model.draw(0);
  model.grad(bad).set(model.grad(bad).count() - 1, kNaN);
  try {
    optimizer.step();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing";
}

class Deferred : public test::EveryVariant {
 protected:
  void SetUp() override { RODE_CUDA_ONLY("a CPU step is complete when it returns"); }
};
INSTANTIATE_TEST_SUITE_P(Optimizers, Deferred, ::testing::ValuesIn(test::variants()),
                         test::variant_name);

TEST_P(Deferred, ABadGradientIsToldByCheckInTheWordsOfTheCpuAndHasChangedNothing) {
  for (std::size_t bad = 0; bad < test::small_model().size(); ++bad) {
    Enqueued run(GetParam().method);
    const auto weights = run.weights();
    const auto state = test::state_of(*run.optimizer);
    run.step(0, bad);
    EXPECT_EQ(run.optimizer->steps_done(), 0);
    EXPECT_EQ(run.optimizer->refused_steps(), 1);
    expect_same(run.weights(), weights);
    expect_same(test::state_of(*run.optimizer), state);
    expect_error([&] { run.optimizer->check(); }, ErrorKind::non_finite,
                 {error_on_the_cpu(GetParam().method, bad)});
    EXPECT_NO_THROW(run.optimizer->check());  // reported once
  }
}

// With stochastic rounding: the random sequence depends on the performed steps, as on the CPU.
TEST_P(Deferred, RefusedStepsInBetweenLeaveNoTrace) {
  const Method method = GetParam().method.with({{"rounding", "stochastic"}});
  Enqueued plain(method, {}, DType::bf16), refused(method, {}, DType::bf16);
  for (int t = 0; t < 5; ++t) plain.step(t);
  refused.step(0);
  refused.step(1, 2);
  refused.step(1);
  refused.step(2);
  refused.step(3, 0);
  refused.step(3, 1);
  refused.step(3);
  refused.step(4);
  EXPECT_EQ(refused.optimizer->refused_steps(), 3);
  EXPECT_EQ(refused.optimizer->steps_done(), 5);
  expect_error([&] { refused.optimizer->check(); }, ErrorKind::non_finite,
               {"before the last", "'h.1.weight'", "nothing was changed"});
  EXPECT_NO_THROW(refused.optimizer->check());
  expect_same_outcome(refused, plain);
}

TEST_P(Deferred, LookingAfterEveryStepChangesNoBit) {
  Enqueued watched(GetParam().method), left(GetParam().method);
  for (int t = 0; t < 4; ++t) {
    watched.step(t);
    watched.optimizer->check();
    EXPECT_EQ(watched.optimizer->steps_done(), t + 1);
    watched.optimizer->global_diagnostics();
    left.step(t);
  }
  EXPECT_EQ(left.optimizer->global_diagnostics().update_norm,
            watched.optimizer->global_diagnostics().update_norm);
  expect_same_outcome(left, watched);
}

TEST_P(Deferred, LoadedStateCountsOnFromItsStep) {
  const Method method = GetParam().method.with({{"rounding", "stochastic"}});
  Enqueued whole(method, {}, DType::bf16), resumed(method, {}, DType::bf16);
  for (int t = 0; t < 3; ++t) whole.step(t);
  for (int t = 0; t < 3; ++t) resumed.step(t);  // only for the weights
  const auto file = SafetensorsFile::parse(
      serialize_safetensors(whole.optimizer->state(), whole.optimizer->metadata()), "saved");
  resumed.step(7, 1);
  resumed.optimizer->load_state(file);
  EXPECT_EQ(resumed.optimizer->steps_done(), 3);
  resumed.step(3, 2);
  for (int t = 3; t < 6; ++t) {
    whole.step(t);
    resumed.step(t);
  }
  expect_same_outcome(resumed, whole);
  EXPECT_EQ(resumed.optimizer->steps_done(), 6);
}

void expect_equal(const StepDiagnostics& found, const StepDiagnostics& expected) {
  EXPECT_EQ(found.step, expected.step);
  EXPECT_EQ(found.global.weight_norm, expected.global.weight_norm);
  EXPECT_EQ(found.global.update_norm, expected.global.update_norm);
  EXPECT_EQ(found.global.update_ratio, expected.global.update_ratio);
  EXPECT_EQ(found.global.gradient_norm, expected.global.gradient_norm);
  ASSERT_EQ(found.matrices.size(), expected.matrices.size());
  for (std::size_t i = 0; i < found.matrices.size(); ++i) {
    const MatrixDiagnostics &a = found.matrices[i], &b = expected.matrices[i];
    EXPECT_EQ(a.name, b.name);
    EXPECT_EQ(std::vector({a.rho, a.rho_next, a.s, a.q, a.theta, a.gamma, a.m_norm}),
              std::vector({b.rho, b.rho_next, b.s, b.q, b.theta, b.gamma, b.m_norm}))
        << a.name;
  }
}

// On every backend: what is read late is what a caller who waits after each step sees.
TEST(History, HoldsWhatWouldHaveBeenReadAfterEachStep) {
  Enqueued watched(RodeOptions{}), run(RodeOptions{});
  run.optimizer->keep_history(3);
  EXPECT_TRUE(run.optimizer->take_history().empty());
  std::vector<StepDiagnostics> expected;
  for (int t = 0; t < 5; ++t) {
    watched.step(t);
    expected.push_back(
        {t, watched.optimizer->global_diagnostics(), watched.optimizer->matrix_diagnostics()});
  }
  EXPECT_NE(expected[0].matrices[0].theta, expected[1].matrices[0].theta);
  for (int t = 0; t < 2; ++t) run.step(t);
  auto found = run.optimizer->take_history();
  ASSERT_EQ(found.size(), 2U);
  for (std::size_t i = 0; i < 2; ++i) expect_equal(found[i], expected[i]);
  for (int t = 2; t < 5; ++t) run.step(t);
  found = run.optimizer->take_history();  // the ring begins again behind what was taken
  ASSERT_EQ(found.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) expect_equal(found[i], expected[i + 2]);
  // The last step is still the last, and nothing has moved.
  expect_equal({4, run.optimizer->global_diagnostics(), run.optimizer->matrix_diagnostics()},
               expected[4]);
  expect_same_outcome(run, watched);
  EXPECT_TRUE(run.optimizer->take_history().empty());
}

TEST(History, ThatCannotBeKeptChangesNothing) {
  Model model;
  test::Optimizer optimizer(model.parameters(), RodeOptions{});
  optimizer.keep_history(2);
  EXPECT_ANY_THROW(optimizer.keep_history(static_cast<std::size_t>(-1)));
  model.run(optimizer, 3);
  EXPECT_EQ(optimizer.take_history().size(), 2U);
}

TEST(History, KeepsTheLastStepsLeavesRefusedOnesOutAndEndsWhereItIsAskedTo) {
  Enqueued run(RodeOptions{});
  run.optimizer->keep_history(3);
  for (int t = 0; t < 5; ++t) run.step(t);
  std::vector<std::int64_t> steps;
  for (const StepDiagnostics& one : run.optimizer->take_history()) steps.push_back(one.step);
  EXPECT_EQ(steps, (std::vector<std::int64_t>{2, 3, 4}));
  run.step(5);
  EXPECT_THROW(
      {
        run.step(6, 1);
        run.optimizer->check();
      },
      Error);
  run.step(6);
  const auto found = run.optimizer->take_history();
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0].step, 5);
  EXPECT_EQ(found[1].step, 6);
  run.optimizer->keep_history(0);
  run.step(7);
  EXPECT_TRUE(run.optimizer->take_history().empty());
}

TEST(History, OfASkippedParameterIsZeroInThatStepAlone) {
  Enqueued run(RodeOptions{}, {.on_non_finite = OnBadGradient::skip});
  run.optimizer->keep_history(4);
  run.step(0);
  run.step(1, 1);
  run.step(2);
  const auto found = run.optimizer->take_history();
  ASSERT_EQ(found.size(), 3U);
  EXPECT_GT(found[0].matrices[1].rho, 0);
  EXPECT_EQ(found[1].matrices[1].rho, 0);
  EXPECT_GT(found[1].matrices[0].rho, 0);
  EXPECT_GT(found[2].matrices[1].rho, 0);
  EXPECT_TRUE(run.optimizer->skipped().empty());  // of the last step
}

TEST(DeferredSteps, SkippedParametersAreToldOfTheLastStepAndTheStepCounts) {
  RODE_CUDA_ONLY("a CPU step is complete when it returns");
  std::vector<std::string> heard;
  Enqueued run(RodeOptions{}, {.on_non_finite = OnBadGradient::skip,
                               .notify = [&](std::string_view text) { heard.emplace_back(text); }});
  run.step(0);
  run.step(1, 1);
  EXPECT_TRUE(heard.empty()) << "nothing has been read yet";
  EXPECT_EQ(run.optimizer->skipped(), std::vector<std::string>{"h.1.weight"});
  ASSERT_EQ(heard.size(), 1U);
  EXPECT_NE(heard[0].find("'h.1.weight'"), std::string::npos);
  EXPECT_EQ(run.optimizer->steps_done(), 2);
  EXPECT_EQ(run.optimizer->matrix_diagnostics()[1].rho, 0);
  run.step(2);
  EXPECT_TRUE(run.optimizer->skipped().empty());
  EXPECT_NO_THROW(run.optimizer->check());
}

// The next step is refused, or skips the parameter: the step's own sums are gone by then.
TEST(DeferredSteps, ThatSpoiledTheWeightsAreToldThoughALaterOneHidesIt) {
  RODE_CUDA_ONLY("a CPU step is complete when it returns");
  const std::vector<Method> methods{AdamWOptions{}, AdEMAMixOptions{}, AdafactorOptions{},
                                    SgdOptions{},   SoapOptions{},     MuonOptions{}};
  for (const Method& method : methods) {
    for (const OnBadGradient policy : {OnBadGradient::refuse, OnBadGradient::skip}) {
      SCOPED_TRACE(method.name());
      Enqueued run(method.with({{"lr", "1e30"}}), {.on_non_finite = policy}, DType::f32,
                   {{"w", {12, 8}}});
      run.step(0, {}, 0);
      run.step(1, {}, 1e30);
      run.step(2, 0);
      expect_error([&] { run.optimizer->check(); }, ErrorKind::non_finite,
                   {"before the last", "'w'", "has changed", "restore a checkpoint"});
      EXPECT_NO_THROW(run.optimizer->check());  // reported once
      const bool refuse = policy == OnBadGradient::refuse;
      EXPECT_EQ(run.optimizer->refused_steps(), refuse ? 1 : 0);
      EXPECT_EQ(run.optimizer->steps_done(), refuse ? 2 : 3);
    }
  }
}

TEST(DeferredSteps, WhatTheHostKnowsIsThrownAtOnce) {
  RODE_CUDA_ONLY("a CPU step is complete when it returns");
  Enqueued run(RodeOptions{});
  run.step(0);
  const auto weights = run.weights();
  run.optimizer->bind_grad(0, {});
  expect_error([&] { run.optimizer->step(); }, ErrorKind::missing_gradient, {"'h.0.weight'"});
  EXPECT_NO_THROW(run.optimizer->check());
  expect_same(run.weights(), weights);
  EXPECT_EQ(run.optimizer->steps_done(), 1);
}

TEST(DeferredSteps, BindingWhatIsBoundTellsTheDeviceNothing) {
  RODE_CUDA_ONLY("the CPU reads the jobs themselves");
  Enqueued run(RodeOptions{});
  run.step(0);
  if (test::refreshes_of_stand_in == 0) GTEST_SKIP() << "only the stand-in counts";
  rode::Optimizer& optimizer = *run.optimizer;
  const Parameter bound = optimizer.parameters()[0];
  const int before = test::refreshes_of_stand_in;
  optimizer.bind_value(0, bound.value);
  optimizer.bind_grad(0, bound.grad);
  optimizer.set_coupling(0, {});
  run.step(1);
  EXPECT_EQ(test::refreshes_of_stand_in, before);
  optimizer.bind_grad(0, {});
  optimizer.bind_grad(0, bound.grad);
  run.step(2);
  EXPECT_EQ(test::refreshes_of_stand_in, before + 1);
}

TEST(DeferredSteps, DiagnosticsAreEmptyBeforeTheFirst) {
  Enqueued run(RodeOptions{});
  EXPECT_NO_THROW(run.optimizer->check());
  EXPECT_EQ(run.optimizer->steps_done(), 0);
  EXPECT_EQ(run.optimizer->refused_steps(), 0);
  EXPECT_EQ(run.optimizer->global_diagnostics().weight_norm, 0);
  EXPECT_TRUE(run.optimizer->skipped().empty());
}

// On either backend.
TEST(Checking, CountsRefusedStepsAndHasNothingLeftToSayAfterTheError) {
  Model model;
  test::Optimizer optimizer(model.parameters(), RodeOptions{});
  model.run(optimizer, 2);
  model.draw(2);
  model.grad(0).set(0, kNaN);
  EXPECT_THROW(optimizer.step(), Error);
  EXPECT_NO_THROW(optimizer.check());
  EXPECT_EQ(optimizer.refused_steps(), 1);
  EXPECT_EQ(optimizer.steps_done(), 2);
}

TEST(Checking, AMultiplierForReplaysMustBeOne) {
  Model model;
  test::Optimizer optimizer(model.parameters(), RodeOptions{});
  for (const double bad : {-1.0, std::nan("")}) {
    expect_error([&] { optimizer.set_multiplier(bad); }, ErrorKind::invalid_argument,
                 {"multiplier"});
  }
  EXPECT_NO_THROW(optimizer.set_multiplier(0.5));
}

}  // namespace
}  // namespace rode
