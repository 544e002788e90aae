// SPDX-License-Identifier: Apache-2.0
// Learning-rate schedules: one multiplier for lr, lr_rho and lr_rest.
//
//   by step t = 0, 1, ..., T-1 with W warm-up steps:
//     t <  W:  (t + 1) / W
//     t >= W:  (1 + cos(pi (t - W) / (T - W))) / 2
//   warm-up, stable, cool-down over the last D steps, x = (t - (T - D)) / D:
//     W <= t < T-D:  1
//     t >= T-D:      1 - x (linear), 1 - sqrt(x) (square_root), (1 - x)^p (power)
//   by epoch e of E:  (1 + cos(pi e / E)) / 2, no warm-up
#pragma once

#include <cstdint>

namespace rode {

enum class Cooldown { linear, square_root, power };

class Schedule {
 public:
  static Schedule constant();
  static Schedule warmup_cosine(std::int64_t warmup_steps, std::int64_t total_steps);
  // `power`: p of Cooldown::power. The cool-down is at most what the warm-up leaves.
  static Schedule warmup_stable_decay(std::int64_t warmup_steps, std::int64_t total_steps,
                                      std::int64_t cooldown_steps, Cooldown form = Cooldown::linear,
                                      double power = 1);
  static Schedule cosine_by_epoch(std::int64_t epochs);

  // `position` is the step, or the epoch for cosine_by_epoch. At and past the end: 0.
  double multiplier(std::int64_t position) const;

 private:
  Schedule(std::int64_t warmup, std::int64_t total) : warmup_(warmup), total_(total) {}
  double cooled(double x) const;

  std::int64_t warmup_;
  std::int64_t total_;         // 0: constant
  std::int64_t cooldown_ = 0;  // 0: a cosine
  Cooldown form_ = Cooldown::linear;
  double power_ = 1;
};

}  // namespace rode
