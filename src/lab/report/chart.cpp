// SPDX-License-Identifier: Apache-2.0
// Axes, bands, lines and a legend, drawn with coordinates of two decimals.
#include "lab/report/chart.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include <fmt/format.h>

namespace rode::lab {
namespace {

constexpr double kWidth = 640;
constexpr double kHeight = 400;
constexpr double kLeft = 68;
constexpr double kRight = 16;
constexpr double kTop = 34;
constexpr double kBottom = 48;

// Okabe and Ito's colours, told apart by people who do not see all hues; the yellow is darkened.
constexpr std::array<std::string_view, 8> kColours = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                      "#b8860b", "#56b4e9", "#000000", "#999999"};

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();

  void take(double value) {
    if (!std::isfinite(value)) return;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  void settle() {
    if (low > high) low = 0, high = 1;
    if (low == high) low -= 0.5, high += 0.5;
  }
};

// From values to places; a logarithmic axis is linear in log10.
struct Frame {
  Range x, y;
  bool log_y = false;

  double scaled(double value) const { return log_y ? std::log10(value) : value; }
  bool drawable(const ChartPoint& p) const {
    return std::isfinite(p.x) && std::isfinite(p.y) && (!log_y || p.y > 0);
  }
  double at_x(double value) const {
    return kLeft + (value - x.low) / (x.high - x.low) * (kWidth - kLeft - kRight);
  }
  double at_y(double value) const {
    // Curves that are cut off may be anywhere; numbers in the file stay short.
    const double share = std::clamp((scaled(value) - y.low) / (y.high - y.low), -9.0, 9.0);
    return kHeight - kBottom - share * (kHeight - kTop - kBottom);
  }
  double lower(const ChartPoint& p) const {
    // A band that reaches 0 has no logarithm: it ends a decade below the curve.
    return log_y ? std::max(p.y - p.spread, p.y / 10) : p.y - p.spread;
  }
};

Frame frame_of(const Chart& chart) {
  Frame frame;
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

std::string text_at(double x, double y, std::string_view anchor, std::string_view text) {
  return fmt::format(R"(<text x="{:.2f}" y="{:.2f}" text-anchor="{}">{}</text>)", x, y, anchor,
                     escape_markup(text));
}

std::string rule(double x1, double y1, double x2, double y2, std::string_view style) {
  return fmt::format(R"(<line x1="{:.2f}" y1="{:.2f}" x2="{:.2f}" y2="{:.2f}" {}/>)", x1, y1, x2,
                     y2, style);
}

std::vector<double> y_ticks(const Frame& frame) {
  if (!frame.log_y) return round_ticks(frame.y.low, frame.y.high, 6);
  std::vector<double> ticks;
  for (auto power = std::floor(frame.y.low); power <= frame.y.high; ++power) {
    for (const double digit : {1.0, 2.0, 5.0}) {
      const double value = digit * std::pow(10.0, power);
      const double place = std::log10(value);
      if (place >= frame.y.low && place <= frame.y.high) ticks.push_back(value);
    }
  }
  // Within less than a decade they may be too few to read a value from.
  constexpr std::size_t kFewest = 3;
  if (ticks.size() >= kFewest) return ticks;
  return round_ticks(std::pow(10.0, frame.y.low), std::pow(10.0, frame.y.high), 5);
}

std::string axes(const Chart& chart, const Frame& frame) {
  constexpr std::string_view kGrid = R"(stroke="#e4e4e4")";
  const double bottom = kHeight - kBottom;
  std::string out;
  for (const double tick : y_ticks(frame)) {
    const double y = frame.at_y(tick);
    out += rule(kLeft, y, kWidth - kRight, y, kGrid);
    out += text_at(kLeft - 8, y + 4, "end", fmt::format("{:.6g}", tick));
  }
  for (const double tick : round_ticks(frame.x.low, frame.x.high, 7)) {
    const double x = frame.at_x(tick);
    out += rule(x, bottom, x, bottom + 5, R"(stroke="#444")");
    out += text_at(x, bottom + 20, "middle", fmt::format("{:.6g}", tick));
  }
  out += rule(kLeft, bottom, kWidth - kRight, bottom, R"(stroke="#444")");
  out += rule(kLeft, kTop, kLeft, bottom, R"(stroke="#444")");
  out += text_at((kLeft + kWidth - kRight) / 2, kHeight - 8, "middle", chart.x_label);
  out += fmt::format(R"x(<text transform="translate(16 {:.2f}) rotate(-90)" )x"
                     R"x(text-anchor="middle">{}</text>)x",
                     (kTop + bottom) / 2, escape_markup(chart.y_label));
  out += fmt::format(R"(<text x="{:.2f}" y="20" text-anchor="middle" font-size="15">{}</text>)",
                     kWidth / 2, escape_markup(chart.title));
  return out;
}

std::string band(const ChartSeries& series, const Frame& frame, std::string_view colour) {
  std::string there;
  bool wide = false;
  for (const ChartPoint& p : series.points) {
    if (!frame.drawable(p)) continue;
    wide = wide || p.spread > 0;
    there += fmt::format("{:.2f},{:.2f} ", frame.at_x(p.x), frame.at_y(p.y + p.spread));
  }
  if (!wide) return {};
  std::string back;
  for (auto p = series.points.rbegin(); p != series.points.rend(); ++p) {
    if (!frame.drawable(*p)) continue;
    back += fmt::format("{:.2f},{:.2f} ", frame.at_x(p->x), frame.at_y(frame.lower(*p)));
  }
  return fmt::format(R"(<polygon points="{}{}" fill="{}" fill-opacity="0.18"/>)", there, back,
                     colour);
}

constexpr std::string_view kDashes = R"( stroke-dasharray="7 4")";

std::string curve(const std::vector<ChartPoint>& points, const Frame& frame,
                  std::string_view colour, std::string_view dashes = {}) {
  std::string path;
  bool down = false;
  for (const ChartPoint& p : points) {
    if (!frame.drawable(p)) {
      down = false;
      continue;
    }
    path += fmt::format("{}{:.2f} {:.2f} ", down ? 'L' : 'M', frame.at_x(p.x), frame.at_y(p.y));
    down = true;
  }
  if (path.empty()) return {};
  return fmt::format(R"(<path d="{}" fill="none" stroke="{}" stroke-width="1.8"{}/>)", path, colour,
                     dashes);
}

// Inside an element of its own, which cuts them off at the axes.
std::string diverged_curves(const Chart& chart, const Frame& frame) {
  std::string curves;
  for (std::size_t i = 0; i < chart.series.size(); ++i) {
    for (const auto& run : chart.series[i].diverged) {
      curves += curve(run, frame, kColours[i % kColours.size()], kDashes);
    }
  }
  if (curves.empty()) return {};
  const double width = kWidth - kLeft - kRight;
  const double height = kHeight - kTop - kBottom;
  return fmt::format(R"(<svg x="{0:.0f}" y="{1:.0f}" width="{2:.0f}" height="{3:.0f}" )"
                     R"(viewBox="{0:.0f} {1:.0f} {2:.0f} {3:.0f}" overflow="hidden">{4}</svg>)",
                     kLeft, kTop, width, height, curves);
}

struct LegendEntry {
  std::string name;
  std::string style;
};

std::vector<LegendEntry> legend_entries(const Chart& chart) {
  std::vector<LegendEntry> entries;
  for (std::size_t i = 0; i < chart.series.size(); ++i) {
    const ChartSeries& series = chart.series[i];
    const std::string style =
        fmt::format(R"(stroke="{}" stroke-width="2.4")", kColours[i % kColours.size()]);
    if (!series.points.empty() || series.diverged.empty()) entries.push_back({series.name, style});
    if (!series.diverged.empty()) {
      entries.push_back({series.name + ", diverged", style + std::string(kDashes)});
    }
  }
  if (chart.line) entries.push_back({chart.line_label, R"(stroke="#444" stroke-dasharray="5 4")"});
  return entries;
}

std::string legend(const Chart& chart) {
  const std::vector<LegendEntry> entries = legend_entries(chart);
  std::size_t longest = 0;
  for (const LegendEntry& entry : entries) longest = std::max(longest, entry.name.size());
  const double x = kWidth - kRight - 40 - 7 * static_cast<double>(longest);
  std::string out;
  double y = kTop + 14;
  for (const LegendEntry& entry : entries) {
    out += rule(x, y - 4, x + 24, y - 4, entry.style) + text_at(x + 30, y, "start", entry.name);
    y += 17;
  }
  // On a ground of its own: a curve may run below it.
  return fmt::format(R"(<rect x="{:.2f}" y="{:.2f}" width="{:.2f}" height="{:.2f}" fill="white" )"
                     R"(fill-opacity="0.8"/>)",
                     x - 6, kTop, kWidth - kRight - x + 6, y - kTop - 8) +
         out;
}

}  // namespace

std::string escape_markup(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '&': out += "&amp;"; break;
      case '"': out += "&quot;"; break;
      default: out += c;
    }
  }
  return out;
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

std::string to_svg(const Chart& chart) {
  const Frame frame = frame_of(chart);
  std::string out =
      fmt::format(R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0:.0f} {1:.0f}" )"
                  R"(width="{0:.0f}" height="{1:.0f}" font-family="sans-serif" font-size="12">)"
                  R"(<rect width="100%" height="100%" fill="white"/>)",
                  kWidth, kHeight);
  out += axes(chart, frame);
  if (chart.line && (!chart.log_y || *chart.line > 0)) {
    const double y = frame.at_y(*chart.line);
    out += rule(kLeft, y, kWidth - kRight, y, R"(stroke="#444" stroke-dasharray="5 4")");
  }
  for (std::size_t i = 0; i < chart.series.size(); ++i) {
    out += band(chart.series[i], frame, kColours[i % kColours.size()]);
  }
  for (std::size_t i = 0; i < chart.series.size(); ++i) {
    out += curve(chart.series[i].points, frame, kColours[i % kColours.size()]);
  }
  return out + diverged_curves(chart, frame) + legend(chart) + "</svg>\n";
}

}  // namespace rode::lab
