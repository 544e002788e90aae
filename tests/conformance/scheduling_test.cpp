// SPDX-License-Identifier: Apache-2.0
// How a step is distributed changes nothing: any number of threads gives the same bits, the plain
// loop the same numbers, and the global diagnostics are the sums over the updated parameters.
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/side_by_side.h"
#include "support/tested_optimizer.h"

namespace rode {
namespace {

using testing::Extents;
using testing::Values;

// A model of many parameters that takes a few steps.
struct Model {
  std::vector<Extents> shapes;
  std::vector<Values> weights;
  std::vector<std::vector<Values>> gradients;  // per step, per parameter
};

Model model_of(std::uint64_t seed, const std::vector<Extents>& shapes, int steps) {
  testing::Gaussian gaussian(seed);
  Model model{shapes, {}, std::vector<std::vector<Values>>(static_cast<std::size_t>(steps))};
  for (const Extents& shape : shapes) {
    model.weights.push_back(gaussian.values(testing::count_of(shape), 0.05));
    for (auto& step : model.gradients)
      step.push_back(gaussian.values(testing::count_of(shape), 0.02));
  }
  return model;
}

std::vector<Parameter> parameters_of(const Model& model, std::vector<Values>& weights) {
  std::vector<Parameter> parameters;
  for (std::size_t i = 0; i < weights.size(); ++i)
    parameters.push_back({.name = "w" + std::to_string(i),
                          .value = view(weights[i].data(), testing::shape_of(model.shapes[i])),
                          .grad = {}});
  return parameters;
}

// Everything that a run leaves behind, as bytes.
struct Outcome {
  std::vector<Values> weights;
  std::vector<std::byte> bytes;
};

Outcome run(const Method& method, const Model& model, const EngineOptions& engine) {
  Outcome outcome{model.weights, {}};
  test::Optimizer optimizer(parameters_of(model, outcome.weights), test::in_fp32(method),
                            {.route = Route::matrix, .overrides = {}}, engine);
  for (const auto& step : model.gradients) {
    for (std::size_t i = 0; i < step.size(); ++i)
      optimizer.bind_grad(i, view(step[i].data(), testing::shape_of(model.shapes[i])));
    optimizer.step();
  }
  const auto add = [&](const void* data, std::size_t size) {
    const auto* first = static_cast<const std::byte*>(data);
    outcome.bytes.insert(outcome.bytes.end(), first, first + size);
  };
  for (const Values& w : outcome.weights) add(w.data(), w.size() * sizeof(float));
  for (const TensorEntry& entry : optimizer.state()) add(entry.view.data, entry.view.bytes());
  for (const MatrixDiagnostics& d : optimizer.matrix_diagnostics())
    for (const double x : {d.rho, d.rho_next, d.s, d.q, d.theta, d.gamma, d.m_norm})
      add(&x, sizeof(x));
  const GlobalDiagnostics g = optimizer.global_diagnostics();
  for (const double x : {g.weight_norm, g.update_norm, g.update_ratio, g.gradient_norm})
    add(&x, sizeof(x));
  return outcome;
}

void expect_same_bits_with_any_threads(const Method& method, const Model& model,
                                       const std::string& label) {
  const Outcome one = run(method, model, {.threads = 1});
  for (const int threads : {2, 3, 5})
    EXPECT_TRUE(run(method, model, {.threads = threads}).bytes == one.bytes)
        << method.name() << ", " << label << ", " << threads << " threads";
}

std::vector<Extents> repeated(int count) {
  std::vector<Extents> shapes;
  for (int i = 0; i < count; ++i)
    shapes.push_back(
        std::vector<Extents>{{48, 32}, {20, 52}, {33, 17}}[static_cast<std::size_t>(i) % 3]);
  shapes.push_back({40});  // the rest runs alongside
  shapes.push_back({6, 4, 3, 3});
  return shapes;
}

// One matrix per thread if there are 4 or more per thread, otherwise all threads on each in turn: 2
// matrices and the convolution stay in the second mode, 24 in the first, and 8 change between the
// modes between 2 and 3 threads.
TEST(Scheduling, NumberOfThreadsChangesNoBitOfAnyOptimizer) {
  RODE_CPU_ONLY("tests the engine's threads");
  for (const OptimizerInfo& info : list_optimizers())
    for (const int count : {2, 8, 24})
      expect_same_bits_with_any_threads(Method::by_name(info.name),
                                        model_of(61, repeated(count), 12),
                                        std::to_string(count) + " matrices");
}

// Variants with separate code.
TEST(Scheduling, NumberOfThreadsChangesNoBitOfTheVariants) {
  RODE_CPU_ONLY("tests the engine's threads");
  const Model model = model_of(62, repeated(8), 3);
  for (const Settings& settings : {Settings{{"reproject", "final"}, {"ns_form", "gram"}},
                                   {{"reproject", "final"}},
                                   {{"radius", "adaptive"}, {"nesterov", "true"}},
                                   {{"conditioner", "none"}},
                                   {{"splits", "w0=3"}},
                                   {{"state_dtype", "bf16"}},
                                   {{"state_dtype", "int8"}},
                                   {{"state_rounding", "stochastic"}, {"state_dtype", "int8"}}})
    expect_same_bits_with_any_threads(Method::by_name("rode", settings), model,
                                      settings[0].first + "=" + settings[0].second);
}

// Large enough that products, passes and sums of one matrix are distributed.
TEST(Scheduling, NumberOfThreadsChangesNoBitWithinOneLargeMatrix) {
  RODE_CPU_ONLY("tests the engine's threads");
  const Model model = model_of(63, {{1600, 1200}}, 1);
  for (const Settings& settings :
       {Settings{{"ns_steps", "2"}},
        {{"ns_steps", "1"}, {"state_dtype", "int8"}},
        {{"ns_steps", "3"}, {"reproject", "final"}, {"ns_form", "gram"}}})
    expect_same_bits_with_any_threads(Method::by_name("rode", settings), model, "1600x1200");
  for (const char* name : {"muon", "mars-m"})
    expect_same_bits_with_any_threads(
        Method::by_name(name, {{"ns_steps", "1"}, {"ns_form", "standard"}}), model, "1600x1200");
  for (const char* name : {"adamw", "ademamix", "adafactor", "lion", "sgd"})
    expect_same_bits_with_any_threads(Method::by_name(name), model, "1600x1200");
  expect_same_bits_with_any_threads(Method::by_name("adamw", {{"state_dtype", "int8"}}), model,
                                    "1600x1200 int8");
}

TEST(Scheduling, NumberOfThreadsChangesNoBitOfALargeSoap) {
  RODE_CPU_ONLY("tests the engine's threads");
  expect_same_bits_with_any_threads(Method::by_name("soap", {{"precondition_frequency", "1"}}),
                                    model_of(64, {{320, 300}, {16, 32, 3, 3}}, 3), "320x300");
}

TEST(Scheduling, NumberOfThreadsChangesNoBitOfBf16Products) {
  RODE_CPU_ONLY("tests the engine's threads");
  const Model model = model_of(65, {{640, 520}, {48, 32}}, 1);
  for (const char* name : {"rode", "muon"}) {
    const Method method = Method::by_name(name, {{"ns_dtype", "bf16"}});
    expect_same_bits_with_any_threads(method, model, "bf16");
  }
}

// The loop uses full products, the batch symmetric ones: equal bits on every matrix would mean that
// one of them runs the other's products.
TEST(Scheduling, BatchAndPlainLoopAgreeToRoundingByDifferentProducts) {
  testing::Judge judge;
  const std::vector<Extents> shapes = {{96, 40}, {96, 40}, {40, 96},
                                       {64, 64}, {33, 17}, {160, 120}};
  const Model model = model_of(66, shapes, 10);
  for (const char* name : {"rode", "rode-snr", "muon", "muon-rms", "muon-normproj", "mars-m"}) {
    const Method method = Method::by_name(name);
    const Outcome batch = run(method, model, {.batched = true});
    const Outcome loop = run(method, model, {.batched = false});
    int different = 0;
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      different += batch.weights[i] != loop.weights[i] ? 1 : 0;
      testing::Problem problem{.shape = shapes[i], .weight = model.weights[i], .gradients = {}};
      problem.gradients.resize(model.gradients.size());
      // Both are fp32: twice the tolerance of a step, ten steps.
      EXPECT_TRUE(judge.agrees(
          std::string(name) + " " + testing::to_string(shapes[i]),
          compare(problem, batch.weights[i], {loop.weights[i].begin(), loop.weights[i].end()},
                  2 * testing::one_step())));
    }
    // A GPU may use the symmetry in neither: it matters only if products take time.
    if (!test::on_cuda()) {
      EXPECT_GT(different, 0) << name;
    }
  }
}

// Matrices in a batch do not affect each other: each steps as it would alone, bit for bit.
TEST(Scheduling, MatrixStepsInCompanyAsItDoesAlone) {
  const Model all = model_of(67, repeated(8), 4);
  for (const OptimizerInfo& info : list_optimizers()) {
    const Method method = Method::by_name(info.name);
    const Outcome together = run(method, all, {.threads = 2});
    for (std::size_t i = 0; i < all.shapes.size(); ++i) {
      Model alone{{all.shapes[i]}, {all.weights[i]}, {}};
      for (const auto& step : all.gradients) alone.gradients.push_back({step[i]});
      EXPECT_TRUE(run(method, alone, {.threads = 2}).weights[0] == together.weights[i])
          << info.name << " " << testing::to_string(all.shapes[i]);
    }
  }
}

TEST(Scheduling, GlobalDiagnosticsAreTheSumsOverEveryParameter) {
  const Model model = model_of(68, repeated(5), 4);
  for (const OptimizerInfo& info : list_optimizers()) {
    std::vector<Values> weights = model.weights;
    test::Optimizer optimizer(parameters_of(model, weights), Method::by_name(info.name),
                              {.route = Route::matrix, .overrides = {}});
    for (const auto& step : model.gradients) {
      const std::vector<Values> before = weights;
      for (std::size_t i = 0; i < step.size(); ++i)
        optimizer.bind_grad(i, view(step[i].data(), testing::shape_of(model.shapes[i])));
      optimizer.step();
      double ww = 0, gg = 0, dd = 0;
      for (std::size_t i = 0; i < weights.size(); ++i) {
        ww += testing::dot(before[i], before[i]);
        gg += testing::dot(step[i], step[i]);
        dd += std::pow(testing::distance(weights[i], before[i]), 2);
      }
      // The engine adds the same fp32 numbers in double, in a different order; on the CPU those
      // that are only reported in fp32 within a tile of 256, one after the other where the compiler
      // makes no vectors of it: each addition rounds by 2^-24 at most, and a norm takes half of it.
      constexpr double kOrder = 1e-12;
      const double within = test::on_cuda() ? kOrder : 256 * 0x1p-24 / 2;
      const GlobalDiagnostics d = optimizer.global_diagnostics();
      EXPECT_NEAR(d.weight_norm, std::sqrt(ww), within * std::sqrt(ww)) << info.name;
      EXPECT_NEAR(d.gradient_norm, std::sqrt(gg), kOrder * std::sqrt(gg)) << info.name;
      EXPECT_NEAR(d.update_norm, std::sqrt(dd), within * std::sqrt(dd)) << info.name;
      EXPECT_NEAR(d.update_ratio, std::sqrt(dd) / (std::sqrt(ww) + 1e-12), within) << info.name;
    }
  }
}

// Squares of such weights or moves do not fit fp32; their norms do.
TEST(Scheduling, GlobalDiagnosticsReachBeyondTheSquaresThatFp32Holds) {
  for (const float size : {1e25F, 1e-25F}) {
    Values weights(600, size), grad(600, size);
    test::Optimizer optimizer(
        {{"w", view(weights.data(), {600}), view(grad.data(), {600})}},
        Method::by_name("sgd", {{"lr_rest", "0.5"}, {"weight_decay_rest", "0"}}));
    if (size > 1) grad.assign(600, 1e18F);  // whose squares must fit
    optimizer.bind_grad(0, view(grad.data(), {600}));
    optimizer.step();
    const double norm = std::sqrt(600.0) * static_cast<double>(size);
    const double move = size > 1 ? 0 : 0.5 * norm;  // the larger is lost in rounding
    EXPECT_NEAR(optimizer.global_diagnostics().weight_norm, norm, 1e-7 * norm);
    EXPECT_NEAR(optimizer.global_diagnostics().update_norm, move, 1e-7 * norm);
  }
}

}  // namespace
}  // namespace rode
