// SPDX-License-Identifier: Apache-2.0
// The multiplier formulas.
#include "rode/schedule.h"

#include <cmath>
#include <numbers>

#include <fmt/format.h>

#include "rode/error.h"

namespace rode {

Schedule Schedule::constant() { return {0, 0}; }

Schedule Schedule::warmup_cosine(std::int64_t warmup_steps, std::int64_t total_steps) {
  if (warmup_steps < 0 || total_steps <= 0 || warmup_steps >= total_steps) {
    throw Error(ErrorKind::invalid_argument, "schedule",
                fmt::format("warm-up of {} steps in {} steps; expected 0 <= warm-up < total",
                            warmup_steps, total_steps));
  }
  return {warmup_steps, total_steps};
}

Schedule Schedule::cosine_by_epoch(std::int64_t epochs) {
  if (epochs <= 0) {
    throw Error(ErrorKind::invalid_argument, "schedule",
                fmt::format("{} epochs; expected 1 or more", epochs));
  }
  return {0, epochs};
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
  const double progress =
      static_cast<double>(position - warmup_) / static_cast<double>(total_ - warmup_);
  return (1 + std::cos(std::numbers::pi * progress)) / 2;
}

}  // namespace rode
