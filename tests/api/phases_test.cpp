// SPDX-License-Identifier: Apache-2.0
// A step in phases is the step.
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "api/support.h"

namespace rode {
namespace {

using test::EveryVariant;
using test::expect_error;
using test::expect_same;
using test::Model;
using test::Optimizer;
using test::Snapshot;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Matrices of several shapes, one of them a batch, and the rest.
std::vector<test::Spec> phased_model() {
  std::vector<test::Spec> specs = test::small_model();
  specs.push_back({"h.experts.up", {3, 6, 10}});
  return specs;
}

class PhasesOfEveryVariant : public EveryVariant {
 protected:
  void SetUp() override {
    if (GetParam().method.name() == "muown") GTEST_SKIP() << "radii of rows have no phases";
  }
};
INSTANTIATE_TEST_SUITE_P(Optimizers, PhasesOfEveryVariant, testing::ValuesIn(test::variants()),
                         test::variant_name);

TEST_P(PhasesOfEveryVariant, AreTheWholeStepBitForBit) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const int threads : {1, 3}) {
      Model whole(phased_model(), dtype, dtype), phased(phased_model(), dtype, dtype);
      Optimizer a(whole.parameters(), GetParam().method, {}, {.threads = threads});
      Optimizer b(phased.parameters(), GetParam().method, {}, {.threads = threads, .phases = true});
      for (int t = 0; t < 4; ++t) {
        whole.draw(t);
        phased.draw(t);
        a.step(0.5 + t);
        if (t == 2) {
          b.step(0.5 + t);  // both ways in one run
        } else {
          b.step_in_phases(0.5 + t);
        }
      }
      expect_same(Snapshot(phased, b), Snapshot(whole, a));
    }
  }
}

TEST_P(PhasesOfEveryVariant, NothingIsChangedByPreparing) {
  Model model(phased_model());
  Optimizer optimizer(model.parameters(), GetParam().method, {}, {.phases = true});
  model.run(optimizer, 2);
  model.draw(2);
  const Snapshot before(model, optimizer);
  optimizer.prepare();
  const std::vector<MeasuredGradient> found = optimizer.measured();
  optimizer.abandon();
  expect_same(Snapshot(model, optimizer), before);
  ASSERT_EQ(found.size(), model.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_TRUE(found[i].good);
    double squares = 0;
    for (const float g : model.grad(i).floats()) squares += static_cast<double>(g) * g;
    // Those of the step before: no step has uploaded the ones drawn since.
    EXPECT_NEAR(std::sqrt(found[i].squared_norm / squares), 1, 0.5) << found[i].parameter;
  }
}

TEST_P(PhasesOfEveryVariant, ABadGradientIsMeasuredAndComputingRefusesIt) {
  Model model(phased_model());
  Optimizer optimizer(model.parameters(), GetParam().method, {}, {.phases = true});
  model.run(optimizer, 2);
  model.draw(2);
  model.grad(1).set(3, kNaN);
  const Snapshot before(model, optimizer);
  bool good[5] = {};
  const auto look = [&] {
    const std::vector<MeasuredGradient> found = optimizer.measured();
    for (std::size_t i = 0; i < found.size(); ++i) good[i] = found[i].good;
  };
  expect_error([&] { optimizer.step_in_phases(1, look); }, ErrorKind::non_finite,
               {"[step]", "'h.1.weight'", "NaN or Inf"});
  EXPECT_TRUE(good[0] && !good[1] && good[2] && good[3] && good[4]);
  expect_same(Snapshot(model, optimizer), before);
  EXPECT_EQ(optimizer.refused_steps(), 1);
  model.run(optimizer, 1);  // as if it had not been
  EXPECT_EQ(optimizer.steps_done(), 3);
}

TEST(Phases, AreRefusedWhereRowsHaveRadii) {
  const Method rode = Method::by_name("rode", {{"radius_scope", "rows"}, {"reproject", "final"}});
  for (const auto& [method, what] :
       {std::pair{rode, "option 'radius_scope' = 'rows'"}, {Method::by_name("muown"), "muown"}}) {
    Model model;
    expect_error([&, &one = method] { Optimizer(model.parameters(), one, {}, {.phases = true}); },
                 ErrorKind::unsupported, {what, "EngineOptions::phases", "without phases"});
  }
}

TEST(Phases, ComeInTheirOrderAndOnlyWhereTheyWereAskedFor) {
  Model model;
  Optimizer plain(model.parameters(), RodeOptions{});
  const auto refused = [](auto&& act, const char* text) {
    expect_error(act, ErrorKind::invalid_argument, {text});
  };
  refused([&] { plain.prepare(); }, "set EngineOptions::phases");
  Model other;
  Optimizer optimizer(other.parameters(), RodeOptions{}, {}, {.phases = true});
  refused([&] { optimizer.compute(); }, "no step has been prepared; call prepare first");
  refused([&] { optimizer.apply(); }, "no step has been computed; call compute first");
  refused([&] { optimizer.abandon(); }, "call prepare first");
  refused([&] { optimizer.prepare(-1); }, "multiplier");
  optimizer.prepare();
  refused([&] { optimizer.step(); }, "compute or abandon it first");
  refused([&] { optimizer.apply(); }, "compute or abandon it first");
  const auto nothing_is_set = [&](const char* first) {
    refused([&] { optimizer.bind_grad(0, {}); }, first);
    refused([&] { optimizer.set_option(0, "lr", 0.5); }, first);
    refused([&] { optimizer.set_steps_done(3); }, first);
    refused([&] { optimizer.save("unused.safetensors"); }, first);
  };
  nothing_is_set("compute or abandon it first");
  optimizer.compute();
  nothing_is_set("apply it first");
  refused([&] { optimizer.abandon(); }, "apply it first");
  optimizer.apply();
  optimizer.check();
  EXPECT_EQ(optimizer.steps_done(), 1);
  // On CUDA one batch has all of this model: nothing is added.
  if (!test::on_cuda()) {
    EXPECT_GT(optimizer.workspace_bytes(), plain.workspace_bytes());
  }
}

}  // namespace
}  // namespace rode
