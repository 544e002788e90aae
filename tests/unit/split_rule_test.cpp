// SPDX-License-Identifier: Apache-2.0
// The split form of Newton-Schulz: rounding to e4m3 and fp16, the scales, and its equations against
// the plain ones.
#include "rules/split_rule.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "reference/newton_schulz.h"

namespace rode {
namespace {

using rules::e4m3_nearest;
using rules::fp16_nearest;

// All numbers of a format that are not negative, ascending, from its definition.
std::vector<float> numbers(int exponents, int mantissa, int bias, float most) {
  std::vector<float> list;
  const int steps = 1 << mantissa;
  for (int e = 0; e < exponents; ++e) {
    for (int m = 0; m < steps; ++m) {
      const int whole = e == 0 ? m : steps + m, shift = (e == 0 ? 1 : e) - bias - mantissa;
      const float value = std::ldexp(static_cast<float>(whole), shift);
      if (value <= most) list.push_back(value);
    }
  }
  return list;
}

template <class Round>
void expect_nearest(const std::vector<float>& list, const Round& round) {
  for (std::size_t i = 0; i < list.size(); ++i) {
    for (const float sign : {1.0F, -1.0F}) {
      ASSERT_EQ(round(sign * list[i]), sign * list[i]);
      if (i + 1 == list.size()) continue;
      const float middle = 0.5F * (list[i] + list[i + 1]);  // exact in fp32
      const float even = i % 2 == 0 ? list[i] : list[i + 1];
      ASSERT_EQ(round(sign * middle), sign * even) << middle;
      ASSERT_EQ(round(sign * std::nextafter(middle, 0.0F)), sign * list[i]) << middle;
      ASSERT_EQ(round(sign * std::nextafter(middle, 1e9F)), sign * list[i + 1]) << middle;
    }
  }
}

TEST(SplitRule, E4m3RoundsToNearestWithTiesToEvenAndSaturates) {
  const std::vector<float> list = numbers(16, 3, 7, 448);
  ASSERT_EQ(list.size(), 127U);  // the last pattern is NaN
  expect_nearest(list, e4m3_nearest);
  for (const float large : {448.1F, 464.0F, 1e9F, std::numeric_limits<float>::infinity()}) {
    EXPECT_EQ(e4m3_nearest(large), 448);
    EXPECT_EQ(e4m3_nearest(-large), -448);
  }
  EXPECT_TRUE(std::isnan(e4m3_nearest(std::numeric_limits<float>::quiet_NaN())));
  EXPECT_TRUE(std::signbit(e4m3_nearest(-0.0F)));
}

TEST(SplitRule, Fp16RoundsToNearestWithTiesToEven) {
  expect_nearest(numbers(31, 10, 15, 65504), fp16_nearest);
  EXPECT_TRUE(std::isnan(fp16_nearest(std::numeric_limits<float>::quiet_NaN())));
}

// No element can be rounded down to 448, and half the range is in use.
TEST(SplitRule, ScalesKeepWhatTheRangesAllowBelowTheLargestNumber) {
  for (const Coefficients set :
       {Coefficients::jordan, Coefficients::polar_express, Coefficients::you, Coefficients::four}) {
    for (int k = 0; k < rules::own_ns_steps(set); ++k) {
      for (const std::int64_t n : {64, 768, 4096}) {
        const rules::SplitScales scales = rules::split_scales(set, k, n);
        const double u = rules::ns_range(set, k).input;
        const rules::NsTriple p = rules::ns_triple(set, k);
        double low = 0, high = 0;
        for (int i = 0; i <= 1000; ++i) {
          const double y = u * u * i / 1000;
          low = std::min(low, y * (p.b + p.c * y));
          high = std::max(high, y * (p.b + p.c * y));
        }
        const double largest[3] = {u, u * u / 2, (high - low) / 2};
        float room = 1;
        if (rules::schatten_start(set) && k == 0) {
          room = rules::schatten_room(n);
          EXPECT_GE(std::pow(room, 4), n);
          EXPECT_LT(std::pow(room / 2, 4), n);
        }
        const float own[3] = {scales.x, scales.o, scales.p * room};
        for (int i = 0; i < 3; ++i) {
          EXPECT_LE(largest[i] * own[i], 448.0) << i;
          EXPECT_GT(largest[i] * own[i], 223.0) << i;
        }
      }
    }
  }
}

// Without rounding the split form is the plain one.
TEST(SplitRule, ItsEquationsAreThoseOfTheWholePolynomial) {
  std::mt19937_64 engine(5);
  std::normal_distribution<double> gaussian(0, 0.2);
  reference::Matrix x(20, 12);
  for (double& v : x.data) v = gaussian(engine);
  for (const char* set : {"jordan", "four"}) {
    const reference::Quintic p = reference::quintic(set, 0);
    const reference::Matrix expected = reference::newton_schulz_step(x, p);
    reference::Matrix o = reference::multiply(reference::transpose(x), x);
    std::vector<double> sizes(o.cols);
    for (std::size_t i = 0; i < o.cols; ++i) {
      sizes[i] = o(i, i);
      o(i, i) = 0;
    }
    const reference::Matrix square = reference::multiply(o, o);
    reference::Matrix off(o.rows, o.cols);
    const auto f = [](double v) { return static_cast<float>(v); };
    for (std::size_t i = 0; i < o.rows; ++i) {
      for (std::size_t j = 0; j < o.cols; ++j) {
        if (i == j) continue;
        off(i, j) = static_cast<double>(rules::split_off(f(p.b), f(p.c), f(sizes[i]), f(sizes[j]),
                                                         f(o(i, j)), f(square(i, j))));
      }
    }
    const reference::Matrix applied = reference::multiply(x, off);
    for (std::size_t i = 0; i < x.rows; ++i) {
      for (std::size_t j = 0; j < x.cols; ++j) {
        const float factor =
            rules::split_diagonal(f(p.a), f(p.b), f(p.c), f(sizes[j]), f(square(j, j)));
        EXPECT_NEAR(static_cast<double>(factor) * x(i, j) + applied(i, j), expected(i, j), 1e-5);
      }
    }
  }
}

}  // namespace
}  // namespace rode
