// SPDX-License-Identifier: Apache-2.0
// Ranges that show the finished runs, and round ticks.
#include "lab/report/chart_frame.h"

#include <algorithm>
#include <initializer_list>

namespace rode::lab {

void Range::take(double value) {
  if (!std::isfinite(value)) return;
  low = std::min(low, value);
  high = std::max(high, value);
}

void Range::settle() {
  if (low > high) low = 0, high = 1;
  if (low == high) low -= 0.5, high += 0.5;
}

double ChartFrame::at_x(double value) const {
  return kPlotLeft + (scaled_x(value) - x.low) / (x.high - x.low) * (kPlotRight - kPlotLeft);
}

double ChartFrame::at_y(double value) const {
  // Curves that are cut off may be anywhere; numbers in the file stay short.
  const double share = std::clamp((scaled(value) - y.low) / (y.high - y.low), -9.0, 9.0);
  return kPlotBottom - share * (kPlotBottom - kPlotTop);
}

double ChartFrame::lower(const ChartPoint& p) const {
  return log_y ? std::max(p.y - p.spread, p.y / 10) : p.y - p.spread;
}

ChartFrame frame_of(const Chart& chart) {
  ChartFrame frame;
  frame.log_y = chart.log_y;
  frame.log_x = chart.log_x;
  const auto take = [&](const std::vector<ChartPoint>& points, bool height) {
    for (const ChartPoint& p : points) {
      if (!frame.drawable(p)) continue;
      frame.x.take(frame.scaled_x(p.x));
      if (!height) continue;
      frame.y.take(frame.scaled(frame.lower(p)));
      frame.y.take(frame.scaled(p.y + p.spread));
    }
  };
  for (const ChartSeries& series : chart.series) take(series.points, true);
  // A loss on its way to infinity would press all others into one line.
  const bool alone = frame.y.low > frame.y.high;
  for (const ChartSeries& series : chart.series) {
    for (const auto& run : series.diverged) take(run, alone);
  }
  if (chart.line && (!chart.log_y || *chart.line > 0)) frame.y.take(frame.scaled(*chart.line));
  frame.x.settle();
  frame.y.settle();
  const double margin = 0.04 * (frame.y.high - frame.y.low);
  frame.y.low -= margin;
  frame.y.high += margin;
  if (chart.markers) {  // whole ones, at the edges too
    const double beside = 0.04 * (frame.x.high - frame.x.low);
    frame.x.low -= beside;
    frame.x.high += beside;
  }
  return frame;
}

namespace {

// Of an axis that is linear in log10: 1, 2, 5 of every decade, or fewer, or more.
std::vector<double> log_ticks(const Range& range) {
  constexpr std::size_t kFewest = 3;
  constexpr std::size_t kMost = 9;
  std::vector<double> ticks;
  const auto fill = [&](std::initializer_list<double> digits, int every) {
    ticks.clear();
    for (auto power = static_cast<int>(std::floor(range.low)); power <= range.high; ++power) {
      if (power % every != 0) continue;
      for (const double digit : digits) {
        const double value = digit * std::pow(10.0, power);
        const double place = std::log10(value);
        if (place >= range.low && place <= range.high) ticks.push_back(value);
      }
    }
  };
  fill({1, 2, 5}, 1);
  for (int every = 1; ticks.size() > kMost; ++every) fill({1}, every);
  // Within less than a decade they may be too few to read a value from.
  if (ticks.size() >= kFewest) return ticks;
  return round_ticks(std::pow(10.0, range.low), std::pow(10.0, range.high), 5);
}

}  // namespace

std::vector<double> x_ticks(const ChartFrame& frame) {
  return frame.log_x ? log_ticks(frame.x) : round_ticks(frame.x.low, frame.x.high, 6);
}

std::vector<double> y_ticks(const ChartFrame& frame) {
  return frame.log_y ? log_ticks(frame.y) : round_ticks(frame.y.low, frame.y.high, 6);
}

std::vector<double> round_ticks(double low, double high, int wanted) {
  const double rough = (high - low) / std::max(1, wanted);
  if (!(rough > 0) || !std::isfinite(rough)) return {low};
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double digit : {1.0, 2.0, 5.0}) {
    if (digit * power >= rough) {
      step = digit * power;
      break;
    }
  }
  std::vector<double> ticks;
  for (double k = std::ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; ++k) {
    ticks.push_back(k * step + 0.0);  // +0.0: no "-0"
  }
  return ticks;
}

}  // namespace rode::lab
