// SPDX-License-Identifier: Apache-2.0
// How the curves of a chart are distinguished, and the legend.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lab/report/chart.h"

namespace rode::lab {

// Eight colours, each with several dashes: solid for the first eight, then dashed, dotted, ...
struct SeriesStyle {
  std::string colour;
  std::string_view dashes;  // of stroke-dasharray; empty: solid

  // Attributes of a line.
  std::string stroke(double width) const;
};
SeriesStyle style_of(std::size_t series);
// As the chart has it: of a scale, or one apart from the others.
SeriesStyle style_of(const Chart& chart, std::size_t series);

constexpr double kCurveWidth = 2;
constexpr double kDivergedWidth = 1;
constexpr std::string_view kDiverged = ", diverged";

// The horizontal line of a chart.
std::string line_stroke();

// A dot where a measurement is.
std::string dot_at(double x, double y, std::string_view colour);
// A cross of two strokes around a place: the end of a run that diverged.
std::string cross_at(double x, double y, std::string_view colour);

struct LegendEntry {
  std::string name;
  std::string sample;     // a piece of the curve: SVG of kSampleWidth x kSampleHeight
  std::ptrdiff_t series;  // -1: the horizontal line
  bool diverged = false;
};
constexpr double kSampleWidth = 32;
constexpr double kSampleHeight = 12;

// In the order of the series; a series without a finished run has only its diverged ones.
std::vector<LegendEntry> legend_of(const Chart& chart);
// The panel that has most series: those of a grid are the same, and some panels lack the last ones.
const Chart& widest_legend(const ChartGrid& grid);

}  // namespace rode::lab
