// SPDX-License-Identifier: Apache-2.0
// The multiplier formulas.
#include "rode/schedule.h"

#include <cmath>
#include <numbers>

#include <fmt/format.h>

#include "rode/error.h"

namespace rode {

Schedule Schedule::constant() { return {0, 0}; }

namespace {

void check_lengths(std::int64_t warmup_steps, std::int64_t total_steps) {
  if (warmup_steps < 0 || total_steps <= 0 || warmup_steps >= total_steps) {
    throw Error(ErrorKind::invalid_argument, "schedule",
                fmt::format("warm-up of {} steps in {} steps; expected 0 <= warm-up < total",
                            warmup_steps, total_steps));
  }
}

}  // namespace

Schedule Schedule::warmup_cosine(std::int64_t warmup_steps, std::int64_t total_steps) {
  check_lengths(warmup_steps, total_steps);
  return {warmup_steps, total_steps};
}

Schedule Schedule::warmup_stable_decay(std::int64_t warmup_steps, std::int64_t total_steps,
                                       std::int64_t cooldown_steps, Cooldown form, double power) {
  check_lengths(warmup_steps, total_steps);
  if (cooldown_steps < 1 || cooldown_steps > total_steps - warmup_steps) {
    throw Error(ErrorKind::invalid_argument, "schedule",
                fmt::format("cool-down of {} steps in {} steps with a warm-up of {}; expected 1 to "
                            "{}",
                            cooldown_steps, total_steps, warmup_steps, total_steps - warmup_steps));
  }
  if (!std::isfinite(power) || power <= 0) {
    throw Error(ErrorKind::invalid_argument, "schedule",
                fmt::format("power of the cool-down is {}; expected a number above 0", power));
  }
  Schedule schedule(warmup_steps, total_steps);
  schedule.cooldown_ = cooldown_steps;
  schedule.form_ = form;
  schedule.power_ = power;
  return schedule;
}

Schedule Schedule::cosine_by_epoch(std::int64_t epochs) {
  if (epochs <= 0) {
    throw Error(ErrorKind::invalid_argument, "schedule",
                fmt::format("{} epochs; expected 1 or more", epochs));
  }
  return {0, epochs};
}

double Schedule::cooled(double x) const {
  switch (form_) {
    case Cooldown::linear: return 1 - x;
    case Cooldown::square_root: return 1 - std::sqrt(x);
    case Cooldown::power: return std::pow(1 - x, power_);
  }
  return 1 - x;
}

double Schedule::multiplier(std::int64_t position) const {
  if (position < 0) {
    throw Error(ErrorKind::invalid_argument, "schedule",
                fmt::format("multiplier of step or epoch {}; expected 0 or more", position));
  }
  if (total_ == 0) return 1;
  if (position >= total_) return 0;
  if (position < warmup_) {
    return static_cast<double>(position + 1) / static_cast<double>(warmup_);
  }
  if (cooldown_ > 0) {
    const std::int64_t into = position - (total_ - cooldown_);
    return into <= 0 ? 1 : cooled(static_cast<double>(into) / static_cast<double>(cooldown_));
  }
  const double progress =
      static_cast<double>(position - warmup_) / static_cast<double>(total_ - warmup_);
  return (1 + std::cos(std::numbers::pi * progress)) / 2;
}

}  // namespace rode
