// SPDX-License-Identifier: Apache-2.0
// Comparisons as tables, charts and a page.
#include <cmath>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "lab/report/chart_frame.h"
#include "lab/report/html_report.h"
#include "lab/report/series_style.h"
#include "support.h"

namespace rode::lab {
namespace {

int count(const std::string& text, std::string_view part) {
  int found = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) ++found;
  return found;
}

TEST(Spread, IsTheSamples) {
  EXPECT_FALSE(spread_of({}));
  EXPECT_FALSE(spread_of({2})->deviation);
  const Spread spread = *spread_of({1, 2, 4});
  EXPECT_DOUBLE_EQ(spread.mean, 7.0 / 3);
  EXPECT_NEAR(*spread.deviation, std::sqrt(7.0 / 3), 1e-12);
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

TEST(Report, LeavesDivergedRunsOutOfTheMeans) {
  Comparison comparison{.task = "tiny-lm", .title = "T", .language = true, .optimizers = {}};
  OptimizerSummary& optimizer = comparison.optimizers.emplace_back();
  optimizer.name = "adamw";
  const auto add = [&](const char* status, double loss) {
    RunSummary& run = optimizer.runs.emplace_back();
    run.run = {{"task", {{"name", "tiny-lm"}}}, {"options", {{"lr", "0.001"}}}, {"steps", 10}};
    run.result = {{"status", status}, {"final_loss", loss}, {"best_loss", loss}};
    run.log = {{{"kind", "evaluation"}, {"step", 5}, {"loss", loss}, {"weight_norm", 2.0}},
               {{"kind", "step"}, {"step", 5}, {"loss", loss}},
               {{"kind", "evaluation"}, {"step", 6}, {"loss", loss}, {"weight_norm", 2.0}}};
  };
  add("finished", 1.0);
  add("finished", 2.0);
  add("diverged", 9.0);
  EXPECT_DOUBLE_EQ(optimizer.of("final_loss")->mean, 1.5);
  EXPECT_MENTIONS(summary_table(comparison)[1].back(), "1 diverged");
  const ChartSeries loss = charts_of(comparison).at("validation_loss").series.at(0);
  ASSERT_EQ(loss.points.size(), 2U);
  EXPECT_DOUBLE_EQ(loss.points[0].y, 1.5);
  ASSERT_EQ(loss.diverged.size(), 1U);
  EXPECT_DOUBLE_EQ(loss.diverged[0].at(0).y, 9.0);
  const std::string html = html_report(comparison);
  EXPECT_MENTIONS(html, "1.5000 ± 0.7071");
  EXPECT_MENTIONS(html, ">adamw, diverged<");
  EXPECT_EQ(html.find("src="), std::string::npos);  // nothing from elsewhere
  // One step is no curve: neither in the page nor as a file, also where an older report had it.
  EXPECT_EQ(count(html, "<figure>"), 3);
  EXPECT_EQ(charts_of(comparison).count("training_loss"), 0U);
  const Scratch scratch;
  write_file(scratch / "training_loss.svg", "old");
  write_report(comparison, scratch.path());
  EXPECT_FALSE(std::filesystem::exists(scratch / "training_loss.svg"));
  EXPECT_TRUE(std::filesystem::exists(scratch / "validation_loss.svg"));
  EXPECT_EQ(read_file(scratch / "report.html"), html);
  EXPECT_EQ(read_json(scratch / "compare.json")["optimizers"][0]["diverged"], 1);
}

}  // namespace
}  // namespace rode::lab
