// SPDX-License-Identifier: Apache-2.0
// The progress of a run, as far as it is known.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "lab/run/rates.h"

namespace rode::lab {

// After every step, every part of an evaluation and every evaluation. What is not known yet is
// unset: a run that begins has no loss of a batch, no rates and no speed.
struct Progress {
  struct Part {
    std::int64_t done = 0;
    std::int64_t total = 0;
  };

  std::int64_t step = 0;
  std::int64_t total = 0;
  std::optional<double> loss = {};  // of the last batch that was read
  std::optional<double> eval_loss = {};
  std::optional<double> eval_accuracy = {};  // images
  bool evaluated = false;                    // eval_loss is new
  std::optional<Part> evaluating = {};       // samples of an evaluation that is under way
  std::optional<Rates> rates = {};           // of the last step
  std::optional<double> units_per_second = {};
  std::optional<double> seconds_left = {};
  std::string_view unit = {};  // "tokens", "images"
};
std::string format_progress(const Progress& progress);
std::string clock_text(double seconds);  // "1:02:03", "2:03"

// The speed of this process: of its steps alone, and of all it does.
class Pace {
 public:
  using Clock = std::chrono::steady_clock;

  void begin() { begin_ = Clock::now(); }
  void add_step(Clock::time_point start) {
    step_seconds_ += seconds_since(start);
    ++steps_;
  }
  // Nothing before the first step.
  std::optional<double> steps_per_second() const {
    if (steps_ == 0 || step_seconds_ <= 0) return {};
    return static_cast<double>(steps_) / step_seconds_;
  }
  // Evaluations and checkpoints included.
  std::optional<double> seconds_for(std::int64_t steps) const {
    if (steps_ == 0) return {};
    return seconds_since(begin_) / static_cast<double>(steps_) * static_cast<double>(steps);
  }

 private:
  static double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

  Clock::time_point begin_ = Clock::now();
  double step_seconds_ = 0;
  std::int64_t steps_ = 0;
};

}  // namespace rode::lab
