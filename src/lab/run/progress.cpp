// SPDX-License-Identifier: Apache-2.0
// One line that shows the progress of a run.
#include "lab/run/progress.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace rode::lab {
namespace {

// "953", "12.3k", "1.2M"
std::string count_text(double value) {
  if (value < 1e3) return fmt::format("{:.0f}", value);
  return value < 1e6 ? fmt::format("{:.1f}k", value / 1e3) : fmt::format("{:.1f}M", value / 1e6);
}

}  // namespace

std::string clock_text(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::llround(std::max(0.0, seconds)));
  const auto minutes = whole / 60;
  if (minutes < 60) return fmt::format("{}:{:02}", minutes, whole % 60);
  return fmt::format("{}:{:02}:{:02}", minutes / 60, minutes % 60, whole % 60);
}

std::string format_progress(const Progress& progress) {
  constexpr int kCells = 20;
  const double share = progress.total == 0 ? 1.0
                                           : static_cast<double>(progress.step) /
                                                 static_cast<double>(progress.total);
  const int filled = static_cast<int>(share * kCells);
  std::string line = fmt::format("[{:#<{}}{:.<{}}] {}/{}", "", filled, "", kCells - filled,
                                 progress.step, progress.total);
  if (progress.loss) line += fmt::format("  loss {:.4f}", *progress.loss);
  if (progress.eval_loss) line += fmt::format("  valid {:.4f}", *progress.eval_loss);
  if (progress.eval_accuracy) line += fmt::format(" ({:.2f}%)", 100 * *progress.eval_accuracy);
  if (progress.evaluating) {
    return line +
           fmt::format("  evaluating {}/{}", progress.evaluating->done, progress.evaluating->total);
  }
  if (progress.rates) {
    line += fmt::format("  lr {:.2e}", progress.rates->lr);
    if (progress.rates->lr_rho) line += fmt::format(" rho {:.2e}", *progress.rates->lr_rho);
    if (progress.rates->lr_rest) line += fmt::format(" rest {:.2e}", *progress.rates->lr_rest);
  }
  if (progress.units_per_second) {
    line += fmt::format("  {} {}/s", count_text(*progress.units_per_second), progress.unit);
  }
  if (progress.seconds_left) line += fmt::format("  {} left", clock_text(*progress.seconds_left));
  return line;
}

}  // namespace rode::lab
