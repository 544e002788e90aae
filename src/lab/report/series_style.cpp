// SPDX-License-Identifier: Apache-2.0
// Colours, dashes and the entries of a legend.
#include "lab/report/series_style.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

namespace rode::lab {
namespace {

// After Okabe and Ito, which people who do not see all hues can distinguish; darkened until each
// has a contrast of at least 3 to 1 with white.
constexpr std::array<std::string_view, 8> kColours = {"#0060a8", "#d55e00", "#00875f", "#c2579a",
                                                      "#8f6b00", "#3a96d8", "#000000", "#7d7d7d"};
constexpr std::array<std::string_view, 4> kDashes = {"", "8 3", "2 3", "9 3 2 3"};

std::string sample(std::string_view stroke) {
  return fmt::format(R"(<line x1="1" y1="{0:.0f}" x2="{1:.0f}" y2="{0:.0f}" {2}/>)",
                     kSampleHeight / 2, kSampleWidth - 1, stroke);
}

}  // namespace

std::string SeriesStyle::stroke(double width) const {
  std::string out = fmt::format(R"(stroke="{}" stroke-width="{:g}")", colour, width);
  if (!dashes.empty()) out += fmt::format(R"( stroke-dasharray="{}")", dashes);
  return out;
}

SeriesStyle style_of(std::size_t series) {
  return {std::string(kColours[series % kColours.size()]),
          kDashes[series / kColours.size() % kDashes.size()]};
}

SeriesStyle style_of(const Chart& chart, std::size_t series) {
  if (!chart.ordered || chart.series.size() < 2) {
    return style_of(chart.series[series].style.value_or(series));
  }
  // From dark blue over green to ochre: lightness rises, so that the order is seen without hue.
  struct Colour {
    double red, green, blue;
  };
  constexpr std::array<Colour, 4> kScale = {
      {{48, 18, 92}, {30, 96, 145}, {24, 140, 100}, {200, 150, 10}}};
  const double place = static_cast<double>(series) / static_cast<double>(chart.series.size() - 1) *
                       static_cast<double>(kScale.size() - 1);
  const std::size_t below = std::min(static_cast<std::size_t>(place), kScale.size() - 2);
  const double share = place - static_cast<double>(below);
  const auto mixed = [&](double Colour::* part) {
    const double value = (1 - share) * (kScale[below].*part) + share * (kScale[below + 1].*part);
    return static_cast<int>(std::lround(value));
  };
  return {fmt::format("#{:02x}{:02x}{:02x}", mixed(&Colour::red), mixed(&Colour::green),
                      mixed(&Colour::blue)),
          {}};
}

std::string line_stroke() { return R"(stroke="#555" stroke-width="1" stroke-dasharray="1 4")"; }

std::string dot_at(double x, double y, std::string_view colour) {
  return fmt::format(R"(<circle cx="{:.2f}" cy="{:.2f}" r="3" fill="{}"/>)", x, y, colour);
}

std::string cross_at(double x, double y, std::string_view colour) {
  constexpr double kArm = 4;
  return fmt::format(R"(<path d="M{:.2f} {:.2f} L{:.2f} {:.2f} M{:.2f} {:.2f} L{:.2f} {:.2f}" )"
                     R"(class="cross" fill="none" stroke="{}" stroke-width="1.6"/>)",
                     x - kArm, y - kArm, x + kArm, y + kArm, x - kArm, y + kArm, x + kArm, y - kArm,
                     colour);
}

std::vector<LegendEntry> legend_of(const Chart& chart) {
  std::vector<LegendEntry> entries;
  for (std::size_t i = 0; i < chart.series.size(); ++i) {
    const ChartSeries& series = chart.series[i];
    const SeriesStyle style = style_of(chart, i);
    const auto number = static_cast<std::ptrdiff_t>(i);
    if (!series.points.empty() || series.diverged.empty()) {
      entries.push_back({series.name, sample(style.stroke(kCurveWidth)), number});
    }
    if (!series.diverged.empty()) {
      const std::string end = cross_at(kSampleWidth - 6, kSampleHeight / 2, style.colour);
      entries.push_back({series.name + std::string(kDiverged),
                         sample(style.stroke(kDivergedWidth)) + end, number, true});
    }
  }
  if (chart.line) entries.push_back({chart.line_label, sample(line_stroke()), -1});
  return entries;
}

const Chart& widest_legend(const ChartGrid& grid) {
  return *std::max_element(
      grid.panels.begin(), grid.panels.end(),
      [](const Chart& a, const Chart& b) { return a.series.size() < b.series.size(); });
}

}  // namespace rode::lab
