// SPDX-License-Identifier: Apache-2.0
// Charts as SVG.
#include <cmath>
#include <limits>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "lab/report/chart_frame.h"
#include "lab/report/series_style.h"
#include "support.h"

namespace rode::lab {
namespace {

int count(const std::string& text, std::string_view part) {
  int found = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) ++found;
  return found;
}

TEST(Chart, TicksAreRoundAndInside) {
  EXPECT_EQ(round_ticks(0, 10, 5), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  for (const double tick : round_ticks(-0.31, 0.47, 6)) {
    EXPECT_GE(tick, -0.31);
    EXPECT_LE(tick, 0.47);
  }
  EXPECT_EQ(round_ticks(3, 3, 6), std::vector<double>{3});
}

TEST(Chart, DrawsWhatItCanAndEscapesNames) {
  Chart chart{.title = "a < b", .y_label = "loss", .log_y = true};
  chart.series = {{"x & y", {{0, 1, 0.5}, {1, NAN, 0}, {2, 0.01, 0.5}, {3, -1, 0}}}, {"none", {}}};
  const std::string svg = to_svg(chart);
  EXPECT_MENTIONS(svg, "a &lt; b");
  EXPECT_MENTIONS(svg, "x &amp; y");
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf"), std::string::npos);
  EXPECT_EQ(svg, to_svg(chart));
}

TEST(Chart, EndsRunsThatDivergedInACrossAndKeepsTheRangeOfTheOthers) {
  Chart chart{.title = "t", .y_label = "loss"};
  chart.series = {{"a", {{0, 3, 0}, {10, 1, 0}}}, {"b", {{0, 3, 0}, {10, 2, 0}}}};
  const std::string before = to_svg(chart);
  EXPECT_EQ(count(before, "cross"), 0);
  chart.series[1].diverged = {{{0, 3, 0}, {4, 1e30, 0}}, {{0, 3, 0}, {6, NAN, 0}}};
  const std::string svg = to_svg(chart);
  EXPECT_EQ(count(svg, ">b, diverged<"), 1);    // one entry for both
  EXPECT_EQ(count(svg, "class=\"cross\""), 3);  // two curves and the entry
  EXPECT_EQ(count(svg, "<path"), 4 + 3);
  EXPECT_EQ(count(svg, ">b<"), 1);
  EXPECT_EQ(svg.find("e+"), std::string::npos);
  const auto axes = [](const std::string& text) {
    const std::size_t from = text.find("translate(0 ");
    return text.substr(from, text.find("<path") - from);
  };
  EXPECT_EQ(axes(svg), axes(before));
  chart.series = {{.name = "c", .diverged = {{{0, 3, 0}, {4, 5, 0}}}}};  // none was finished
  const std::string alone = to_svg(chart);
  EXPECT_EQ(count(alone, ">c, diverged<") + count(alone, ">c<"), 1);
  EXPECT_MENTIONS(alone, ">5<");
}

TEST(Chart, TellsManySeriesApartByColourAndDash) {
  std::set<std::string> strokes;
  for (std::size_t i = 0; i < 32; ++i) strokes.insert(style_of(i).stroke(kCurveWidth));
  EXPECT_EQ(strokes.size(), 32U);
}

TEST(Chart, HasItsLegendBesideThePlotAndRoomForAllOfIt) {
  Chart chart{.title = "t", .y_label = "loss"};
  const std::string name(40, 'w');
  for (int i = 0; i < 30; ++i) chart.series.push_back({name, {{0, 3, 0}, {10, 1, 0}}});
  const std::string svg = to_svg(chart);
  const auto number_after = [&](std::string_view text, std::size_t from = 0) {
    return std::stod(svg.substr(svg.find(text, from) + text.size(), 8));
  };
  const double width = number_after(" width=\"");
  const double height = number_after(" height=\"");
  const std::size_t last = svg.rfind("<text x=");
  const double left = number_after("x=\"", last);
  EXPECT_GT(left, kPlotRight);
  EXPECT_GT(width, left + 40 * 7);  // letters of this size are about as wide
  EXPECT_LT(number_after("y=\"", last), height);
}

TEST(Chart, WithoutTwoPointsOfARunHasNothingToShow) {
  Chart chart{.title = "t", .log_y = true};
  chart.series = {{"a", {{5, 1, 0}}}, {"b", {{0, -1, 0}, {5, NAN, 0}, {6, 2, 0}}}};
  EXPECT_FALSE(has_curves(chart));
  chart.series[0].diverged = {{{0, 1, 0}, {5, 1, 0}}};
  EXPECT_TRUE(has_curves(chart));
}

TEST(Chart, HasALogarithmicAxisOfRatesWithADotAtEach) {
  Chart chart{.title = "t", .x_label = "lr", .y_label = "loss", .log_x = true, .markers = true};
  chart.series = {{"a", {{1e-3, 3, 0.1}, {1e-2, 2, 0}, {1e-1, 4, 0}}}};
  const std::string svg = to_svg(chart);
  EXPECT_EQ(count(svg, "<circle"), 3);
  EXPECT_MENTIONS(svg, ">0.001<");
  EXPECT_MENTIONS(svg, ">0.01<");
  // Equal factors are equal distances.
  const ChartFrame frame = frame_of(chart);
  EXPECT_NEAR(frame.at_x(1e-2) - frame.at_x(1e-3), frame.at_x(1e-1) - frame.at_x(1e-2), 1e-9);
  // A rate at which every run diverged is a cross at the upper edge.
  chart.series[0].diverged = {{{1, std::numeric_limits<double>::max(), 0}}};
  EXPECT_MENTIONS(to_svg(chart), "class=\"cross\"");
}

TEST(Chart, OfAScaleHasAColourPerStepOfIt) {
  Chart chart{.title = "t", .ordered = true};
  for (int i = 0; i < 24; ++i) chart.series.push_back({std::to_string(i), {{0, 1, 0}, {1, 2, 0}}});
  std::set<std::string> colours;
  for (std::size_t i = 0; i < 24; ++i) colours.insert(style_of(chart, i).colour);
  EXPECT_EQ(colours.size(), 24U);
  EXPECT_TRUE(style_of(chart, 9).dashes.empty());
}

TEST(Chart, GridsHaveEveryPanelAndOneLegend) {
  ChartGrid grid{.title = "radii"};
  for (const char* kind : {"q_proj", "k_proj", "v_proj", "o_proj"}) {
    Chart panel{.title = kind};
    panel.series = {{"layer 0", {{0, 1, 0}, {1, 2, 0}}}, {"layer 1", {{0, 1, 0}, {1, 3, 0}}}};
    grid.panels.push_back(panel);
  }
  const std::string svg = to_svg(grid);
  for (const char* word : {"radii", "q_proj", "o_proj"}) EXPECT_MENTIONS(svg, word);
  EXPECT_EQ(count(svg, ">layer 1<"), 1);
  EXPECT_EQ(count(svg, "<path"), 8);
}

}  // namespace
}  // namespace rode::lab
