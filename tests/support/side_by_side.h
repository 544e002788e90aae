// SPDX-License-Identifier: Apache-2.0
// Runs the engine and the double-precision reference on the same tensors and measures how far apart
// they are.
#pragma once

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "reference/reference.h"
#include "rode/rode.h"
#include "support/backend_under_test.h"
#include "support/tensors.h"

namespace rode::testing {

// Tolerances of the engine against the reference, relative to the distance moved.
inline constexpr double kTwentySteps = 1e-4;
inline constexpr double kHalfProducts = 4e-2;  // operands in bf16 or fp16
// A GPU's fp32 products add in a different order, over longer runs, than the CPU's.
inline double one_step() { return test::on_cuda() ? 1e-4 : 1e-5; }
inline constexpr double kUnitRounding = 0x1.0p-23;  // of fp32

// One parameter and its gradients.
struct Problem {
  Extents shape;
  Values weight;
  std::vector<Values> gradients;
  Layout layout = Layout::out_in;
  std::vector<std::int64_t> blocks = {};  // as given by the method's option `splits`
  Route route = Route::matrix;
  double multiplier = 1.0;
  bool experts = false;  // the first dimension counts matrices
};

Problem correlated_problem(std::uint64_t seed, const Extents& shape, std::size_t steps,
                           double correlation = 0.3);

// The parameter's name in every problem.
inline constexpr const char* kName = "w";

struct EngineRun {
  Values weight;
  reference::State state;
  std::vector<std::vector<MatrixDiagnostics>> diagnostics;  // per step, per block
};

struct ReferenceRun {
  std::vector<double> weight;
  reference::State state;
  std::vector<std::vector<reference::Diagnostics>> diagnostics;
};

// The options of a method as the reference expects them: all of them, as text.
reference::Settings settings_of(const Method& method);

// On the tested backend; products in fp32 if the method does not set their type.
EngineRun run_engine(const Method& method, const Problem& problem, EngineOptions engine = {});
ReferenceRun run_reference(const Method& method, const Problem& problem);
// From a given state, `skip` gradients and their weight later.
ReferenceRun continue_reference(const Method& method, const Problem& problem, const Values& weight,
                                reference::State state, std::size_t skip);

// An optimizer's state of one parameter, widened to double.
reference::State state_of(const rode::Optimizer& optimizer, const std::string& name);

// ||W' - W'_o|| <= tol ||W'_o - W|| + steps 2^-23 ||W||. The second term is the rounding of W to
// fp32.
struct Agreement {
  double error = 0, bound = 0;
  double ratio() const { return bound > 0 ? error / bound : error > 0 ? 1e30 : 0; }
};
Agreement compare(const Problem& problem, const Values& engine, const std::vector<double>& oracle,
                  double tol);

// Records the worst case of a test and reports it at the end, in the output and the XML.
class Judge {
 public:
  Judge() = default;
  ~Judge();
  Judge(const Judge&) = delete;
  Judge& operator=(const Judge&) = delete;

  ::testing::AssertionResult agrees(const std::string& label, const Agreement& agreement);

 private:
  std::string worst_;
  double ratio_ = -1;
  int cases_ = 0;
};

// Both runs, compared; the usual form.
Agreement agreement_of(const Method& method, const Problem& problem, double tol);

// How far apart two methods end according to the reference, in units of the bound: a test of an
// option must first show that the option matters.
double effect(const Method& changed, const Method& plain, const Problem& problem, double tol);
inline constexpr double kVisible = 10;  // bounds that an option's effect must exceed

}  // namespace rode::testing
