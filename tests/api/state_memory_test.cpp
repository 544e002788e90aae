// SPDX-License-Identifier: Apache-2.0
// State in the caller's memory, and numeric options set without text.
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "rode/rode.h"

namespace rode {
namespace {

// A matrix and a vector with gradients, and memory for all their state.
struct Problem {
  std::vector<float> matrix, vector, matrix_grad, vector_grad;
  std::map<std::string, std::vector<std::byte>> memory;

  Problem() : matrix(12), vector(5), matrix_grad(12), vector_grad(5) {
    for (std::size_t i = 0; i < 12; ++i) {
      matrix[i] = std::sin(static_cast<float>(3 * i + 1));
      matrix_grad[i] = std::cos(static_cast<float>(5 * i + 2));
    }
    for (std::size_t i = 0; i < 5; ++i) {
      vector[i] = static_cast<float>(i) - 2;
      vector_grad[i] = 0.5F - static_cast<float>(i);
    }
  }

  std::vector<Parameter> parameters() {
    return {{"w", view(matrix.data(), {4, 3}), view(matrix_grad.data(), {4, 3})},
            {"b", view(vector.data(), {5}), view(vector_grad.data(), {5})}};
  }

  EngineOptions engine() {
    EngineOptions options;
    options.state_memory = [this](std::string_view parameter, std::string_view key,
                                  const Shape& shape, DType dtype) {
      const std::string name = "state." + std::string(parameter) + "." + std::string(key);
      const bool kept = memory.contains(name);
      std::vector<std::byte>& bytes = memory[name];
      bytes.resize(static_cast<std::size_t>(shape.numel()) * size_of(dtype));
      return StateMemory{bytes.data(), kept};
    };
    return options;
  }
};

TEST(PlannedState, IsTheStateThatAnOptimizerThenHas) {
  for (const OptimizerInfo& info : list_optimizers()) {
    SCOPED_TRACE(info.name);
    Problem problem;
    std::vector<Parameter> shapes = problem.parameters();
    for (Parameter& p : shapes) p.value.data = nullptr;  // shapes are enough
    std::map<std::string, std::pair<Shape, DType>> planned, found;
    for (const PlannedState& s : planned_state(shapes, Method::by_name(info.name))) {
      planned["state." + s.parameter + "." + s.key] = {s.shape, s.dtype};
    }
    const Optimizer optimizer(problem.parameters(), Method::by_name(info.name));
    for (const TensorEntry& entry : optimizer.state()) {
      found[entry.name] = {entry.view.shape, entry.view.dtype};
    }
    EXPECT_EQ(planned, found);
    EXPECT_FALSE(found.empty());
  }
}

TEST(StateMemory, IsWhatTheEngineStepsOn) {
  for (const OptimizerInfo& info : list_optimizers()) {
    SCOPED_TRACE(info.name);
    Problem own, given;
    Optimizer plain(own.parameters(), Method::by_name(info.name));
    Optimizer borrowed(given.parameters(), Method::by_name(info.name), {}, given.engine());
    for (int t = 0; t < 3; ++t) {
      plain.step();
      borrowed.step();
    }
    EXPECT_EQ(own.matrix, given.matrix);
    EXPECT_EQ(own.vector, given.vector);
    const std::vector<TensorEntry> state = plain.state();
    ASSERT_EQ(state.size(), given.memory.size());
    for (const TensorEntry& entry : state) {
      const std::vector<std::byte>& bytes = given.memory.at(entry.name);
      ASSERT_EQ(bytes.size(), entry.view.bytes()) << entry.name;
      EXPECT_EQ(std::memcmp(bytes.data(), entry.view.data, bytes.size()), 0) << entry.name;
    }
  }
}

TEST(StateMemory, ThatIsKeptContinuesBitForBit) {
  for (const OptimizerInfo& info : list_optimizers()) {
    SCOPED_TRACE(info.name);
    Problem whole, parts;
    Optimizer through(whole.parameters(), Method::by_name(info.name));
    for (int t = 0; t < 6; ++t) through.step();
    for (int part = 0; part < 3; ++part) {
      Optimizer optimizer(parts.parameters(), Method::by_name(info.name), {}, parts.engine());
      optimizer.set_steps_done(2 * part);
      optimizer.step();
      optimizer.step();
      EXPECT_EQ(optimizer.steps_done(), 2 * part + 2);
    }
    EXPECT_EQ(whole.matrix, parts.matrix);
    EXPECT_EQ(whole.vector, parts.vector);
  }
}

TEST(StateMemory, ThatIsKeptHoldsTheFirstRadius) {
  for (const char* name : {"rode-fixed", "muon-normproj"}) {
    SCOPED_TRACE(name);
    Problem problem;
    {
      const Optimizer first(problem.parameters(), Method::by_name(name), {}, problem.engine());
    }
    float radius = 0;
    std::memcpy(&radius, problem.memory.at("state.w.radius").data(), sizeof(radius));
    for (float& x : problem.matrix) x *= 2;  // no longer the initial ones
    Optimizer second(problem.parameters(), Method::by_name(name), {}, problem.engine());
    second.step();
    double squares = 0;
    for (const float x : problem.matrix) squares += static_cast<double>(x) * x;
    EXPECT_NEAR(std::sqrt(squares), radius, 1e-5 * radius);
  }
}

TEST(StateMemory, MustBeGiven) {
  Problem problem;
  EngineOptions engine;
  engine.state_memory = [](std::string_view, std::string_view, const Shape&, DType) {
    return StateMemory{};
  };
  EXPECT_THROW(Optimizer(problem.parameters(), AdamWOptions{}, {}, engine), Error);
}

TEST(SetOption, TakesNumbersAsItTakesText) {
  for (const OptimizerInfo& info : list_optimizers()) {
    SCOPED_TRACE(info.name);
    Problem by_number, by_text;
    Optimizer a(by_number.parameters(), Method::by_name(info.name));
    Optimizer b(by_text.parameters(), Method::by_name(info.name));
    for (const char* key : {"lr", "lr_rest"}) {
      a.set_option(0, key, 0.03125);
      b.set_option(0, key, "0.03125");
    }
    a.step();
    b.step();
    EXPECT_EQ(by_number.matrix, by_text.matrix);
    EXPECT_EQ(by_number.vector, by_text.vector);
    EXPECT_THROW(a.set_option(0, "lr", -1.0), Error);
    EXPECT_THROW(a.set_option(0, "lr", std::nan("")), Error);
    EXPECT_THROW(a.set_option(0, "rate", 1.0), Error);
    EXPECT_THROW(a.set_option(0, "rounding", 1.0), Error);
    EXPECT_THROW(a.set_option(1, "lr", 1.0), Error);
  }
}

TEST(SetStepsDone, RefusesWhatIsNoCount) {
  Problem problem;
  Optimizer optimizer(problem.parameters(), SgdOptions{});
  EXPECT_THROW(optimizer.set_steps_done(-1), Error);
}

}  // namespace
}  // namespace rode
