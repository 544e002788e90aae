// SPDX-License-Identifier: Apache-2.0
// What an optimizer would ask of gradients, and which matrices it would iterate on, from shapes.
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "rode/rode.h"

namespace rode {
namespace {

std::vector<Parameter> shapes() {
  return {{"w", {nullptr, {6, 4}, DType::f32}, {}},
          {"v", {nullptr, {4, 6}, DType::f32}, {}},
          {"b", {nullptr, {5}, DType::f32}, {}}};
}

using Size = std::tuple<std::string, std::int64_t, std::int64_t, int>;

std::vector<Size> matrices(std::string_view name, const Settings& settings,
                           const std::vector<Parameter>& parameters = shapes()) {
  std::vector<Size> out;
  for (const PlannedMatrix& m : planned_matrices(parameters, Method::by_name(name, settings))) {
    out.emplace_back(m.parameter, m.rows, m.columns, m.iterations);
  }
  return out;
}

TEST(PlannedGradients, NameEveryParameterOnceAlsoWhereItIsSplit) {
  for (const OptimizerInfo& info : list_optimizers()) {
    SCOPED_TRACE(info.name);
    std::vector<std::string> names;
    for (const PlannedGradient& g : planned_gradients(shapes(), Method::by_name(info.name))) {
      names.push_back(g.parameter);
    }
    EXPECT_EQ(names, (std::vector<std::string>{"w", "v", "b"}));
  }
  EXPECT_EQ(planned_gradients(shapes(), Method::by_name("rode", {{"splits", "w=3"}})).size(), 3u);
}

TEST(PlannedGradients, NameParametersWithoutElementsToo) {
  const std::vector<Parameter> empty{{"rows", {nullptr, {0, 4}, DType::f32}, {}},
                                     {"columns", {nullptr, {4, 0}, DType::f32}, {}},
                                     {"vector", {nullptr, {0}, DType::f32}, {}}};
  for (const OptimizerInfo& info : list_optimizers()) {
    SCOPED_TRACE(info.name);
    EXPECT_EQ(planned_gradients(empty, Method::by_name(info.name)).size(), 3u);
  }
}

TEST(PlannedGradients, AreElementwiseWhereNoElementSeesAnother) {
  for (const OptimizerInfo& info : list_optimizers()) {
    SCOPED_TRACE(info.name);
    const Method method = Method::by_name(info.name);
    const auto planned = planned_gradients(shapes(), method);
    // Whether the first element notices another gradient of the last one.
    const auto stepped = [&](float last) {
      std::vector<float> weights(24, 0.5F), grad(24, 0.25F);
      weights[3] = -1;
      grad[7] = 0.5F;
      grad[23] = last;
      Optimizer optimizer({{"w", view(weights.data(), {6, 4}), view(grad.data(), {6, 4})}}, method);
      optimizer.step();
      optimizer.step();  // SOAP's first step only makes its bases
      return weights[0];
    };
    EXPECT_EQ(planned[0].elementwise, stepped(0.25F) == stepped(-4)) << stepped(0.25F);
  }
}

TEST(PlannedGradients, GiveTheNormAtWhichAStepIsRefused) {
  std::vector<Method> methods{Method::by_name("rode", {{"radius", "adaptive"}})};
  for (const OptimizerInfo& info : list_optimizers()) methods.push_back(Method::by_name(info.name));
  for (const Method& method : methods) {
    SCOPED_TRACE(method.name());
    const double limit = std::sqrt(planned_gradients(shapes(), method)[0].most_gg);
    const auto refused = [&](double norm) {
      std::vector<float> weights(24, 0.5F), grad(24, 0);
      grad[5] = static_cast<float>(norm);
      Optimizer optimizer({{"w", view(weights.data(), {6, 4}), view(grad.data(), {6, 4})}}, method);
      try {
        optimizer.step(0);
        optimizer.check();
      } catch (const Error& error) {
        return !error.changed();
      }
      return false;
    };
    EXPECT_FALSE(refused(0.999 * limit));
    EXPECT_TRUE(refused(1.001 * limit));
  }
}

TEST(PlannedMatrices, AreTheBlocksThatNewtonSchulzRunsOn) {
  const std::vector<Size> whole{{"w", 6, 4, 3}, {"v", 4, 6, 3}};
  for (const char* name : {"rode", "muon", "mars-m"}) {
    EXPECT_EQ(matrices(name, {{"ns_steps", "3"}}), whole) << name;
  }
  const std::vector<Size> split{{"w", 1, 4, 3}, {"w", 5, 4, 3}, {"v", 4, 6, 3}};
  EXPECT_EQ(matrices("muon", {{"ns_steps", "3"}, {"splits", "w=1+5"}}), split);
}

TEST(PlannedMatrices, AreCutAlongTheFanOutOfTheLayout) {
  std::vector<Parameter> parameters = shapes();
  parameters[0].layout = Layout::in_out;
  parameters.resize(1);
  const std::vector<Size> split{{"w", 6, 1, 3}, {"w", 6, 3, 3}};
  EXPECT_EQ(matrices("muon", {{"ns_steps", "3"}, {"splits", "w=1+3"}}, parameters), split);
}

TEST(PlannedMatrices, AreNoneWhereNothingIsIterated) {
  for (const char* name : {"adamw", "soap", "adafactor", "lion"}) {
    EXPECT_TRUE(matrices(name, {}).empty()) << name;
  }
  EXPECT_TRUE(matrices("rode", {{"conditioner", "none"}}).empty());
  EXPECT_TRUE(matrices("rode", {{"direction", "fixed"}}).empty());
}

}  // namespace
}  // namespace rode
