// SPDX-License-Identifier: Apache-2.0
// Schedules at their edges.
#include "rode/schedule.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>

#include <gtest/gtest.h>

#include "api/support.h"

namespace rode {
namespace {

using test::expect_error;

TEST(Schedule, WarmsUpLinearlyFromOneWthToOne) {
  const Schedule schedule = Schedule::warmup_cosine(4, 20);
  EXPECT_EQ(schedule.multiplier(0), 0.25);
  EXPECT_EQ(schedule.multiplier(1), 0.5);
  EXPECT_EQ(schedule.multiplier(3), 1.0);
}

TEST(Schedule, CosineBeginsAtOneAndEndsOneStepBeforeZero) {
  const Schedule schedule = Schedule::warmup_cosine(4, 20);
  EXPECT_EQ(schedule.multiplier(4), 1.0);
  EXPECT_NEAR(schedule.multiplier(12), 0.5, 1e-15);
  EXPECT_NEAR(schedule.multiplier(19), (1 + std::cos(std::numbers::pi * 15 / 16)) / 2, 1e-15);
  EXPECT_GT(schedule.multiplier(19), 0.0);
  EXPECT_EQ(schedule.multiplier(20), 0.0);
  EXPECT_EQ(schedule.multiplier(std::numeric_limits<std::int64_t>::max()), 0.0);
}

TEST(Schedule, WithoutWarmUpTheFirstStepHasTheFullRate) {
  const Schedule schedule = Schedule::warmup_cosine(0, 10);
  EXPECT_EQ(schedule.multiplier(0), 1.0);
  EXPECT_NEAR(schedule.multiplier(5), 0.5, 1e-15);
  EXPECT_EQ(Schedule::warmup_cosine(0, 1).multiplier(0), 1.0);
  EXPECT_EQ(Schedule::warmup_cosine(0, 1).multiplier(1), 0.0);
}

TEST(Schedule, NeverRisesAfterTheWarmUpAndStaysWithinZeroAndOne) {
  const Schedule schedule = Schedule::warmup_cosine(10, 1000);
  for (std::int64_t t = 0; t <= 1000; ++t) {
    EXPECT_GE(schedule.multiplier(t), 0.0);
    EXPECT_LE(schedule.multiplier(t), 1.0);
    if (t >= 10) {
      EXPECT_LE(schedule.multiplier(t + 1), schedule.multiplier(t));
    }
  }
}

TEST(Schedule, ByEpochHasNoWarmUp) {
  const Schedule schedule = Schedule::cosine_by_epoch(200);
  EXPECT_EQ(schedule.multiplier(0), 1.0);
  EXPECT_NEAR(schedule.multiplier(100), 0.5, 1e-15);
  EXPECT_NEAR(schedule.multiplier(199), (1 + std::cos(std::numbers::pi * 199 / 200)) / 2, 1e-15);
  EXPECT_EQ(schedule.multiplier(200), 0.0);
}

TEST(Schedule, ConstantIsOneEverywhere) {
  EXPECT_EQ(Schedule::constant().multiplier(0), 1.0);
  EXPECT_EQ(Schedule::constant().multiplier(1'000'000'000'000), 1.0);
}

TEST(Schedule, RefusesLengthsThatLeaveNoStep) {
  const auto refused = [](std::int64_t warmup, std::int64_t total) {
    expect_error([&] { Schedule::warmup_cosine(warmup, total); }, ErrorKind::invalid_argument,
                 {"[schedule]", std::to_string(warmup), std::to_string(total)});
  };
  refused(-1, 10);
  refused(10, 10);
  refused(11, 10);
  refused(0, 0);
  refused(0, -5);
  expect_error([] { Schedule::cosine_by_epoch(0); }, ErrorKind::invalid_argument, {"0 epochs"});
  expect_error([] { Schedule::constant().multiplier(-1); }, ErrorKind::invalid_argument,
               {"step or epoch -1; expected 0 or more"});
}

}  // namespace
}  // namespace rode
