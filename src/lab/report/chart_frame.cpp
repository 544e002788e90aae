// SPDX-License-Identifier: Apache-2.0
// Ranges that show the finished runs, and round ticks.
#include "lab/report/chart_frame.h"

#include <algorithm>

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
  return kPlotLeft + (value - x.low) / (x.high - x.low) * (kPlotRight - kPlotLeft);
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
  const auto take = [&](const std::vector<ChartPoint>& points, bool height) {
    for (const ChartPoint& p : points) {
      if (!frame.drawable(p)) continue;
      frame.x.take(p.x);
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
  return frame;
}

std::vector<double> y_ticks(const ChartFrame& frame) {
  if (!frame.log_y) return round_ticks(frame.y.low, frame.y.high, 6);
  constexpr std::size_t kFewest = 3;
  constexpr std::size_t kMost = 9;
  std::vector<double> ticks;
  const auto fill = [&](std::initializer_list<double> digits) {
    ticks.clear();
    for (auto power = std::floor(frame.y.low); power <= frame.y.high; ++power) {
      for (const double digit : digits) {
        const double value = digit * std::pow(10.0, power);
        const double place = std::log10(value);
        if (place >= frame.y.low && place <= frame.y.high) ticks.push_back(value);
      }
    }
  };
  fill({1, 2, 5});
  if (ticks.size() > kMost) fill({1});
  // Within less than a decade they may be too few to read a value from.
  if (ticks.size() >= kFewest) return ticks;
  return round_ticks(std::pow(10.0, frame.y.low), std::pow(10.0, frame.y.high), 5);
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
