// SPDX-License-Identifier: Apache-2.0
// From values to places: the axes of a chart.
#pragma once

#include <cmath>
#include <limits>
#include <vector>

#include "lab/report/chart.h"

namespace rode::lab {

// A plot with its axes, in the units of its viewBox.
constexpr double kPlotWidth = 560;
constexpr double kPlotHeight = 340;
constexpr double kPlotLeft = 66;
constexpr double kPlotRight = kPlotWidth - 14;
constexpr double kPlotTop = 12;
constexpr double kPlotBottom = kPlotHeight - 48;

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();

  void take(double value);
  void settle();  // never empty
};

// A logarithmic axis is linear in log10.
struct ChartFrame {
  Range x, y;
  bool log_y = false;
  bool log_x = false;

  double scaled(double value) const { return log_y ? std::log10(value) : value; }
  double scaled_x(double value) const { return log_x ? std::log10(value) : value; }
  bool drawable(const ChartPoint& p) const {
    return std::isfinite(p.x) && std::isfinite(p.y) && (!log_y || p.y > 0) && (!log_x || p.x > 0);
  }
  double at_x(double value) const;
  double at_y(double value) const;
  // Of the band. One that reaches 0 has no logarithm: it ends a decade below the curve.
  double lower(const ChartPoint& p) const;
};

ChartFrame frame_of(const Chart& chart);
std::vector<double> x_ticks(const ChartFrame& frame);
std::vector<double> y_ticks(const ChartFrame& frame);

// Round values that cover [low, high], about `wanted` of them.
std::vector<double> round_ticks(double low, double high, int wanted);

}  // namespace rode::lab
