// SPDX-License-Identifier: Apache-2.0
// Curves as SVG, without a plotting library.
#pragma once

#include <cstddef>
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
  // Runs that diverged, a curve each: thinner than the others and ended by a cross, which stands
  // at the edge where the curve leaves their range. "NAME, diverged" in the legend.
  std::vector<std::vector<ChartPoint>> diverged = {};
  // What distinguishes it, where a chart has only some of a page's series: its place is then
  // not its number.
  std::optional<std::size_t> style = {};
};

struct Chart {
  std::string title = {};
  std::string x_label = {};
  std::string y_label = {};
  std::vector<ChartSeries> series = {};  // distinguished by series_style.h
  bool log_y = false;                    // points that are not above 0 are left out
  std::optional<double> line = {};       // a dotted horizontal one
  std::string line_label = {};
  bool log_x = false;
  bool markers = false;  // a dot at every point: measurements, and not a course of time
  bool ordered =
      false;  // series are steps of a scale (layers): one range of colours, dark to light
};

// Charts side by side with one legend, which holds for all: the curves of one matrix kind each.
struct ChartGrid {
  std::string title = {};
  std::vector<Chart> panels = {};
};

// Whether there is a curve to see: two points at different places.
bool has_curves(const Chart& chart);

// A whole <svg> element with title and a legend next to the plot; equal charts give equal text.
// Points that are not finite break a curve.
std::string to_svg(const Chart& chart);
std::string to_svg(const ChartGrid& grid);
// The plot alone, for a page that has title and legend around it.
std::string plot_svg(const Chart& chart);

// Text inside XML or HTML.
std::string escape_markup(std::string_view text);

}  // namespace rode::lab
