// SPDX-License-Identifier: Apache-2.0
// Learning-rate schedules: one multiplier for lr, lr_rho and lr_rest.
//
//   by step t = 0, 1, ..., T-1 with W warm-up steps:
//     t <  W:  (t + 1) / W
//     t >= W:  (1 + cos(pi (t - W) / (T - W))) / 2
//   by epoch e of E:  (1 + cos(pi e / E)) / 2, no warm-up
#pragma once

#include <cstdint>

namespace rode {

class Schedule {
 public:
  static Schedule constant();
  static Schedule warmup_cosine(std::int64_t warmup_steps, std::int64_t total_steps);
  static Schedule cosine_by_epoch(std::int64_t epochs);

  // `position` is the step, or the epoch for cosine_by_epoch. At and past the end: 0.
  double multiplier(std::int64_t position) const;

 private:
  Schedule(std::int64_t warmup, std::int64_t total) : warmup_(warmup), total_(total) {}
  std::int64_t warmup_;
  std::int64_t total_;  // 0: constant
};

}  // namespace rode
