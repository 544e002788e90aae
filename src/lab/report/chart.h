// SPDX-License-Identifier: Apache-2.0
// Curves as SVG, without a plotting library.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace rode::lab {

struct ChartPoint {
  double x = 0;
  double y = 0;
  double spread = 0;  // half the height of the band
};

struct ChartSeries {
  std::string name = {};
  std::vector<ChartPoint> points = {};
  // Runs that diverged, a curve each: dashed, in the same colour, "NAME, diverged" in the legend.
  // What leaves the range of the other curves is cut off.
  std::vector<std::vector<ChartPoint>> diverged = {};
};

struct Chart {
  std::string title = {};
  std::string x_label = {};
  std::string y_label = {};
  std::vector<ChartSeries> series = {};  // at most as many as there are colours are told apart
  bool log_y = false;                    // points that are not above 0 are left out
  std::optional<double> line = {};       // a dashed horizontal one
  std::string line_label = {};
};

// A whole <svg> element; equal charts give equal text. Points that are not finite break a curve.
std::string to_svg(const Chart& chart);

// Text inside XML or HTML.
std::string escape_markup(std::string_view text);

// Round values that cover [low, high], about `wanted` of them.
std::vector<double> round_ticks(double low, double high, int wanted);

}  // namespace rode::lab
