// SPDX-License-Identifier: Apache-2.0
// The ranges of the Newton-Schulz polynomials, from which guards are made, the Schatten-4 start,
// the segments of the Gram form, and what is written of its result.
#include <algorithm>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "rules/matrix_step.h"
#include "rules/muon_rule.h"
#include "rules/newton_schulz_rule.h"
#include "rules/rode_rule.h"

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
  }
}

TEST(NsRule, TheGuardOfE4m3LeavesItsMargin) {
  for (const Coefficients set : kSets) {
    const double margin = rules::guard_margin(set, NsDType::fp8);
    EXPECT_GE(margin, 0.01);
    for (int k = 0; k + 1 < iterations(set); ++k) {
      const rules::NsGuard guard = ns_guard(set, k, iterations(set), NsDType::fp8);
      EXPECT_GT(rules::guard_factor(guard, 0), 1 - margin);
      const double room = k + 2 < iterations(set) ? 1 + margin : 1;
      for (const double t : {-4.0, 0.0, 0.03, 0.5}) {
        const double most = rules::guard_factor(guard, t) * (guard.output + std::abs(t));
        EXPECT_LE(most * room, ns_range(set, k + 1).input * (1 + 1e-15));
      }
    }
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

TEST(NsRule, SegmentsOfTheGramFormFollowOneAnotherUntilTheLastIteration) {
  const auto ends = [](Coefficients set, int steps) {
    std::vector<int> found;
    for (int k = 0; k < steps; k = found.back()) {
      found.push_back(rules::gram_segment_end(set, k, steps));
    }
    return found;
  };
  EXPECT_EQ(ends(Coefficients::jordan, 5), (std::vector<int>{3, 5}));
  EXPECT_EQ(ends(Coefficients::jordan, 2), (std::vector<int>{2}));
  EXPECT_EQ(ends(Coefficients::polar_express, 5), (std::vector<int>{1, 3, 5}));
  EXPECT_EQ(ends(Coefficients::you, 4), (std::vector<int>{1, 3, 4}));
  EXPECT_EQ(ends(Coefficients::four, 4), (std::vector<int>{2, 4}));
}

// One choice for both backends: what is written of an iterate, and what without one.
TEST(MatrixStep, WriteBackTakesTheSumsOfWhatIsWritten) {
  rules::RodeConstants rode{};
  rode.lr = 0.1;
  rode.direction = Direction::geodesic;
  rode.conditioner = Conditioner::newton_schulz;
  rules::RodeScalars scalars{};
  scalars.rho = scalars.rho_next = 2;
  scalars.gamma = 1;
  scalars.direction = true;
  const rules::NormalizedRows rows{0.5, 0.25, 4};
  const auto q = [&](const rules::KnownIterate& iterate) {
    return rules::write_back(rode, 1, 1, scalars, iterate).q;
  };
  EXPECT_EQ(q({false, {3, 25}, nullptr}), 0);
  EXPECT_DOUBLE_EQ(q({true, {3, 25}, nullptr}), 4);
  EXPECT_DOUBLE_EQ(q({true, {3, 25}, &rows}), std::sqrt(4 - 0.125 * 0.125));
  EXPECT_EQ(rules::write_back(rode, 1, 1, scalars, {false, {3, 25}, nullptr}).x, 0);
  const rules::MatrixWrite with = rules::write_back(rode, 1, 1, scalars, {true, {3, 25}, &rows});
  EXPECT_DOUBLE_EQ(with.u, -0.5 * with.x);
  rode.conditioner = Conditioner::none;
  EXPECT_DOUBLE_EQ(q({true, {3, 25}, nullptr}), 1);  // a start of norm 1 that is tangent

  rules::MuonConstants muon{};
  muon.lr = 0.1;
  EXPECT_EQ(rules::write_back(muon, 1, 1, 9, 0, {false, {}, nullptr}).x, 0);
  EXPECT_DOUBLE_EQ(rules::write_back(muon, 1, 1, 9, 0, {true, {}, nullptr}).x, -0.1);
  muon.constraint = MuonConstraint::hyperball;
  // The moved matrix has the radius again: w^2 ww + 2 w x wo + x^2 oo.
  const rules::MatrixWrite held = rules::write_back(muon, 1, 1, 9, 3, {true, {1, 4}, nullptr});
  EXPECT_NEAR(held.w * held.w * 9 + 2 * held.w * held.x + held.x * held.x * 4, 9, 1e-12);
}

TEST(Products, AreOfTheTypeThatWasAskedForWhereThatPays) {
  for (const bool gpu : {false, true}) {
    for (const NsDType asked : {NsDType::automatic, NsDType::fp32, NsDType::bf16, NsDType::fp8}) {
      const NsDType own = gpu ? NsDType::bf16 : NsDType::fp32;
      EXPECT_EQ(rules::products_dtype(asked, gpu, 5, 64),
                asked == NsDType::automatic ? own : asked);
      EXPECT_EQ(rules::products_dtype(asked, gpu, 5, 63), NsDType::fp32);
      EXPECT_EQ(rules::products_dtype(asked, gpu, 0, 64), NsDType::fp32);
    }
  }
  EXPECT_EQ(rules::products_dtype(NsDType::fp16, true, 5, 64), NsDType::fp16);
  EXPECT_EQ(rules::products_dtype(NsDType::fp16, false, 5, 64), NsDType::fp32);
}

}  // namespace
}  // namespace rode
