// SPDX-License-Identifier: Apache-2.0
// The ranges of the Newton-Schulz polynomials, from which guards are made, and the Schatten-4
// start.
#include <algorithm>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "rules/matrix_step.h"
#include "rules/newton_schulz_rule.h"

namespace rode {
namespace {

using rules::ns_guard;
using rules::ns_range;
using rules::ns_triple;

constexpr Coefficients kSets[] = {Coefficients::jordan, Coefficients::polar_express,
                                  Coefficients::you, Coefficients::four};
constexpr NsDType kTypes[] = {NsDType::fp32, NsDType::bf16, NsDType::fp16};
constexpr double kDigits = 1e-4;  // of the tables

double at(const rules::NsTriple& p, double x) {
  const double y = x * x;
  return x * (p.a + y * (p.b + y * p.c));
}

// The largest |p| on [0, end]: at its end, or where p' = a + 3 b y + 5 c y^2 vanishes, y = x^2.
double largest_output(const rules::NsTriple& p, double end) {
  double most = std::abs(at(p, end));
  const double root = std::sqrt(9 * p.b * p.b - 20 * p.a * p.c);
  for (const double sign : {-1.0, 1.0}) {
    const double x = std::sqrt((-3 * p.b + sign * root) / (10 * p.c));
    if (x < end) most = std::max(most, std::abs(at(p, x)));
  }
  return most;
}

// Past the fifth the last iteration repeats.
int iterations(Coefficients set) { return set == Coefficients::four ? 4 : 7; }

// The set whose last input is its third output: there is no room between them.
bool touches(Coefficients set, int k) { return set == Coefficients::four && k == 2; }

TEST(NsRule, EveryIterationMapsItsRangeIntoItsOutput) {
  for (const Coefficients set : kSets) {
    for (int k = 0; k < iterations(set); ++k) {
      SCOPED_TRACE(testing::Message() << "set " << static_cast<int>(set) << " iteration " << k);
      const auto [input, output] = ns_range(set, k);
      const double most = largest_output(ns_triple(set, k), input);
      EXPECT_LE(most, output);
      EXPECT_GT(most, output - kDigits) << "not the polynomial's own maximum";
      // The published range was chosen smaller than it could be.
      if (set == Coefficients::jordan) continue;
      EXPECT_GT(at(ns_triple(set, k), input + kDigits), output) << "a larger range would do";
    }
  }
}

TEST(NsRule, TheGuardSleepsAtZeroWhereTheSetLeavesRoom) {
  for (const Coefficients set : kSets) {
    for (const NsDType dtype : kTypes) {
      for (int k = 0; k + 1 < iterations(set); ++k) {
        SCOPED_TRACE(testing::Message() << "set " << static_cast<int>(set) << " iteration " << k);
        const double factor = rules::guard_factor(ns_guard(set, k, iterations(set), dtype), 0);
        if (!touches(set, k)) {
          EXPECT_EQ(factor, 1);
          continue;
        }
        EXPECT_LT(factor, 1);
        EXPECT_GT(factor, 0.9999);
      }
    }
  }
}

TEST(NsRule, TheGuardBringsWhateverTheProjectionMayLeaveIntoTheNextRange) {
  for (const Coefficients set : kSets) {
    for (const NsDType dtype : kTypes) {
      for (int k = 0; k + 1 < iterations(set); ++k) {
        // A share of the range is left to rounding, except to fp32's, by the published guard, and
        // before the last iteration.
        const bool room =
            dtype != NsDType::fp32 && set != Coefficients::jordan && k + 2 < iterations(set);
        for (const double t : {-10.0, -0.3, -0.02, 0.0, 0.03, 0.0476, 0.5, 4.0}) {
          const double factor = rules::guard_factor(ns_guard(set, k, iterations(set), dtype), t);
          const double most = factor * (ns_range(set, k).output + std::abs(t));
          const double range = ns_range(set, k + 1).input;
          EXPECT_LE(most, range * (1 + 1e-15));
          if (room) {
            EXPECT_LT(most, range * (1 - 0x1p-12));
          }
        }
      }
    }
  }
}

TEST(NsRule, ThePublishedGuardIsACaseOfItBitForBit) {
  for (int i = -3000; i <= 3000; ++i) {
    const double t = i * 1e-4, bound = 1.2024 + std::abs(t);
    const double published = bound > 1.25 ? 1.25 / bound : 1.0;
    for (const NsDType dtype : kTypes) {
      EXPECT_EQ(rules::guard_factor(ns_guard(Coefficients::jordan, i & 3, 5, dtype), t), published);
    }
    EXPECT_EQ(rules::guard_factor(t), published);
  }
}

TEST(NsRule, StartsAreWithinTheRangeOfTheFirstIteration) {
  for (const Coefficients set : kSets) {
    EXPECT_LE(rules::start_target(set, true), ns_range(set, 0).input);
  }
}

TEST(NsRule, TheSchattenStartHasNormOneAndKeepsAShortStartShort) {
  // ||G||_F^2 = sum of the fourth powers of the singular values.
  const auto scale_of = [](const std::vector<double>& values) {
    double squares = 0;
    for (const double v : values) squares += std::pow(v, 4);
    return rules::schatten_scale(squares, static_cast<double>(values.size()));
  };
  const auto norm4 = [](const std::vector<double>& values) {
    double squares = 0;
    for (const double v : values) squares += std::pow(v, 4);
    return std::pow(squares, 0.25);
  };
  const std::vector<double> harmonic = {0.8, 0.4, 0.8 / 3, 0.2, 0.16};  // of norm 0.97
  EXPECT_NEAR(scale_of(harmonic) * norm4(harmonic), 1, 1e-12);
  EXPECT_NEAR(scale_of({1, 0, 0, 0}), 1, 1e-12);                     // one direction: no change
  EXPECT_NEAR(scale_of({0.5, 0.5, 0.5, 0.5}), std::sqrt(2), 1e-12);  // all alike: n^(1/4)
  EXPECT_NEAR(scale_of({0.005, 0.005, 0.005, 0.005}), std::sqrt(2), 1e-12);
  EXPECT_NEAR(scale_of({0, 0, 0, 0}), std::sqrt(2), 1e-12);
  const rules::NsTriple p = ns_triple(Coefficients::four, 0), q = rules::of_scaled(p, 1.5);
  for (const double x : {0.1, 0.4, 0.66}) EXPECT_NEAR(at(q, x), at(p, 1.5 * x), 1e-12);
}

}  // namespace
}  // namespace rode
