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

// Values by hand: of 20 steps 4 warm up and the last 8 cool down.
TEST(Schedule, StaysAtOneUntilItCoolsDown) {
  using enum Cooldown;
  for (const Cooldown form : {linear, square_root, power}) {
    const Schedule schedule = Schedule::warmup_stable_decay(4, 20, 8, form, 3);
    EXPECT_EQ(schedule.multiplier(0), 0.25);
    for (std::int64_t t = 3; t <= 12; ++t) EXPECT_EQ(schedule.multiplier(t), 1.0) << t;
    EXPECT_LT(schedule.multiplier(13), 1.0);
    EXPECT_GT(schedule.multiplier(19), 0.0);
    EXPECT_EQ(schedule.multiplier(20), 0.0);
  }
  const auto at = [](Cooldown form, double p, std::int64_t t) {
    return Schedule::warmup_stable_decay(4, 20, 8, form, p).multiplier(t);
  };
  EXPECT_NEAR(at(linear, 1, 14), 0.75, 1e-15);
  EXPECT_NEAR(at(linear, 1, 19), 0.125, 1e-15);
  EXPECT_NEAR(at(square_root, 1, 14), 0.5, 1e-15);
  EXPECT_NEAR(at(square_root, 1, 16), 1 - std::numbers::sqrt2 / 2, 1e-15);
  EXPECT_NEAR(at(power, 3, 16), 0.125, 1e-15);
  EXPECT_NEAR(at(power, 0.5, 18), 0.5, 1e-15);
  EXPECT_EQ(at(power, 1, 17), at(linear, 1, 17));
  // The whole way behind the warm-up.
  EXPECT_EQ(Schedule::warmup_stable_decay(0, 4, 4).multiplier(1), 0.75);
  for (const std::int64_t steps : {0, -1, 17}) {
    expect_error([&] { Schedule::warmup_stable_decay(4, 20, steps); }, ErrorKind::invalid_argument,
                 {"[schedule]", std::to_string(steps), "expected 1 to 16"});
  }
  expect_error([] { Schedule::warmup_stable_decay(4, 20, 8, power, 0); },
               ErrorKind::invalid_argument, {"power", "above 0"});
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
