// SPDX-License-Identifier: Apache-2.0
// What Newton-Schulz costs, and the form that plans choose by it.
#include "rules/cost.h"

#include <gtest/gtest.h>

#include "backend/cpu/newton_schulz.h"

namespace rode {
namespace {

constexpr double kRatios[] = {1, 1.5, 2.5, 8};

TEST(Cost, GramFormOfFiveIterationsIsWhatTheDocumentationSays) {
  for (const double r : kRatios) {
    EXPECT_DOUBLE_EQ(rules::standard_form_cost(r, 5), 15 * r + 5);
    EXPECT_DOUBLE_EQ(rules::gram_form_cost(r, Coefficients::jordan, 5, 1), 6 * r + 14);
    EXPECT_DOUBLE_EQ(rules::gram_form_cost(r, Coefficients::you, 5, 1), 9 * r + 11);
    EXPECT_DOUBLE_EQ(rules::gram_form_cost(r, Coefficients::polar_express, 5, 1), 9 * r + 11);
  }
}

TEST(Cost, FourIterationsCostFourFifths) {
  for (const double r : kRatios) {
    EXPECT_DOUBLE_EQ(rules::standard_form_cost(r, 4), 12 * r + 4);
    EXPECT_DOUBLE_EQ(rules::gram_form_cost(r, Coefficients::four, 4, 1), 6 * r + 10);
  }
}

TEST(Cost, OneIterationCostsTheSameInBothForms) {
  for (const double r : kRatios) {
    for (const Coefficients set : {Coefficients::jordan, Coefficients::you}) {
      EXPECT_DOUBLE_EQ(rules::gram_form_cost(r, set, 1, 1), rules::standard_form_cost(r, 1));
    }
  }
}

TEST(Cost, FlopsOfAnIterationAreThoseOfTheStandardForm) {
  for (const double r : kRatios) {
    const double n = 64, cube = n * n * n;
    EXPECT_DOUBLE_EQ(rules::symmetric_iteration_flops(r * n, n),
                     cube * rules::standard_form_cost(r, 1));
    EXPECT_DOUBLE_EQ(rules::full_iteration_flops(r * n, n), cube * (4 * r + 2));
  }
}

TEST(Cost, FlopsOfAMatrixCountItsIterationsWhicheverWayItLies) {
  for (const int iterations : {0, 1, 4, 5}) {
    const rules::NsFlops tall = rules::newton_schulz_flops(96, 64, iterations);
    const rules::NsFlops wide = rules::newton_schulz_flops(64, 96, iterations);
    EXPECT_DOUBLE_EQ(tall.symmetric, iterations * rules::symmetric_iteration_flops(96, 64));
    EXPECT_DOUBLE_EQ(tall.full, iterations * rules::full_iteration_flops(96, 64));
    EXPECT_EQ(wide.symmetric, tall.symmetric);
    EXPECT_EQ(wide.full, tall.full);
  }
}

NsForm form_of(std::int64_t rows, std::int64_t cols, int steps, Coefficients set) {
  return cpu::plan_newton_schulz(rows, cols, steps, set, NsDType::fp32, NsForm::automatic, true,
                                 Reproject::final)
      .form;
}

TEST(Cost, TheFormOnTheCpuFollowsTheNumberOfIterations) {
  // Five: from 1.53 on, or from 1.74 on with a second rebuild.
  EXPECT_EQ(form_of(152, 100, 5, Coefficients::jordan), NsForm::standard);
  EXPECT_EQ(form_of(100, 154, 5, Coefficients::jordan), NsForm::gram);
  EXPECT_EQ(form_of(173, 100, 5, Coefficients::you), NsForm::standard);
  EXPECT_EQ(form_of(175, 100, 5, Coefficients::you), NsForm::gram);
  EXPECT_EQ(form_of(160, 100, 4, Coefficients::four), NsForm::standard);
  EXPECT_EQ(form_of(100, 162, 4, Coefficients::four), NsForm::gram);
  // One: it saves nothing, however long the matrix.
  EXPECT_EQ(form_of(800, 100, 1, Coefficients::jordan), NsForm::standard);
  // Two: later than five. Many: sooner.
  EXPECT_EQ(form_of(155, 100, 2, Coefficients::jordan), NsForm::standard);
  EXPECT_EQ(form_of(170, 100, 2, Coefficients::jordan), NsForm::gram);
  EXPECT_EQ(form_of(152, 100, 9, Coefficients::jordan), NsForm::gram);
}

}  // namespace
}  // namespace rode
