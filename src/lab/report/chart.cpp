// SPDX-License-Identifier: Apache-2.0
// Axes, bands, lines and a legend, drawn with coordinates of two decimals.
#include "lab/report/chart.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "lab/report/chart_frame.h"
#include "lab/report/series_style.h"

namespace rode::lab {
namespace {

std::string label_at(double x, double y, std::string_view anchor, std::string_view text,
                     std::string_view more = {}) {
  return fmt::format(R"(<text x="{:.2f}" y="{:.2f}" text-anchor="{}"{}>{}</text>)", x, y, anchor,
                     more, escape_markup(text));
}

std::string rule(double x1, double y1, double x2, double y2, std::string_view style) {
  return fmt::format(R"(<line x1="{:.2f}" y1="{:.2f}" x2="{:.2f}" y2="{:.2f}" {}/>)", x1, y1, x2,
                     y2, style);
}

// "0.01", "1e-4", "2.5e9": short enough to fit next to the axis.
std::string tick_text(double value) {
  const double size = std::abs(value);
  if (size == 0 || (size >= 1e-3 && size < 1e7)) return fmt::format("{:.6g}", value);
  const double power = std::floor(std::log10(size) + 1e-9);
  return fmt::format("{:.4g}e{:.0f}", value / std::pow(10.0, power), power);
}

std::string axes(const Chart& chart, const ChartFrame& frame) {
  constexpr std::string_view kGrid = R"(stroke="#e4e4e4")";
  constexpr std::string_view kAxis = R"(stroke="#444")";
  std::string out;
  for (const double tick : y_ticks(frame)) {
    const double y = frame.at_y(tick);
    out += rule(kPlotLeft, y, kPlotRight, y, kGrid);
    out += label_at(kPlotLeft - 7, y + 4, "end", tick_text(tick));
  }
  for (const double tick : x_ticks(frame)) {
    const double x = frame.at_x(tick);
    out += rule(x, kPlotBottom, x, kPlotBottom + 5, kAxis);
    out += label_at(x, kPlotBottom + 20, "middle", tick_text(tick));
  }
  out += rule(kPlotLeft, kPlotBottom, kPlotRight, kPlotBottom, kAxis);
  out += rule(kPlotLeft, kPlotTop, kPlotLeft, kPlotBottom, kAxis);
  out += label_at((kPlotLeft + kPlotRight) / 2, kPlotHeight - 8, "middle", chart.x_label);
  out += fmt::format(R"x(<text class="y-label" transform="translate(14 {:.2f}) rotate(-90)" )x"
                     R"x(text-anchor="middle">{}</text>)x",
                     (kPlotTop + kPlotBottom) / 2, escape_markup(chart.y_label));
  return out;
}

std::string band(const ChartSeries& series, const ChartFrame& frame, std::string_view colour) {
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
  return fmt::format(R"(<polygon points="{}{}" fill="{}" fill-opacity="0.14"/>)", there, back,
                     colour);
}

std::string curve(const std::vector<ChartPoint>& points, const ChartFrame& frame,
                  std::string_view stroke) {
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
  return fmt::format(R"(<path d="{}" fill="none" stroke-linejoin="round" {}/>)", path, stroke);
}

// With the deviation of each as a bar.
std::string dots(const ChartSeries& series, const ChartFrame& frame, std::string_view colour) {
  std::string out;
  for (const ChartPoint& p : series.points) {
    if (!frame.drawable(p)) continue;
    if (p.spread > 0) {
      out += rule(frame.at_x(p.x), frame.at_y(frame.lower(p)), frame.at_x(p.x),
                  frame.at_y(p.y + p.spread), fmt::format(R"(stroke="{}")", colour));
    }
    out += dot_at(frame.at_x(p.x), frame.at_y(p.y), colour);
  }
  return out;
}

// The last place of a run inside the plot: where it ends, or crosses the edge on its way out.
std::string end_of(const std::vector<ChartPoint>& run, const ChartFrame& frame,
                   std::string_view colour) {
  const ChartPoint* last = nullptr;
  for (const ChartPoint& p : run) {
    if (!frame.drawable(p)) continue;
    const double y = frame.at_y(p.y);
    if (y < kPlotTop || y > kPlotBottom) {
      const double edge = std::clamp(y, kPlotTop, kPlotBottom);
      const double y0 = last == nullptr ? y : frame.at_y(last->y);
      const double x0 = frame.at_x(last == nullptr ? p.x : last->x);
      const double share = y == y0 ? 1 : (edge - y0) / (y - y0);
      return cross_at(x0 + share * (frame.at_x(p.x) - x0), edge, colour);
    }
    last = &p;
  }
  if (last == nullptr) return {};
  return cross_at(frame.at_x(last->x), frame.at_y(last->y), colour);
}

// The curves inside an element of its own, which cuts them off at the axes; the crosses outside.
std::string diverged_curves(const ChartSeries& series, const ChartFrame& frame,
                            const SeriesStyle& style) {
  std::string curves;
  std::string ends;
  for (const auto& run : series.diverged) {
    curves += curve(run, frame, style.stroke(kDivergedWidth));
    ends += end_of(run, frame, style.colour);
  }
  if (curves.empty()) return {};
  const double width = kPlotRight - kPlotLeft;
  const double height = kPlotBottom - kPlotTop;
  return fmt::format(R"(<svg x="{0:.0f}" y="{1:.0f}" width="{2:.0f}" height="{3:.0f}" )"
                     R"(viewBox="{0:.0f} {1:.0f} {2:.0f} {3:.0f}" overflow="hidden">{4}</svg>{5})",
                     kPlotLeft, kPlotTop, width, height, curves, ends);
}

// By which a page can show one series alone.
std::string series_group(std::size_t series, const std::string& content) {
  if (content.empty()) return {};
  return fmt::format(R"(<g class="series" data-series="{}">{}</g>)", series, content);
}

std::string plot(const Chart& chart) {
  const ChartFrame frame = frame_of(chart);
  std::string out = axes(chart, frame);
  if (chart.line && (!chart.log_y || *chart.line > 0)) {
    const double y = frame.at_y(*chart.line);
    out += rule(kPlotLeft, y, kPlotRight, y, line_stroke());
  }
  for (std::size_t i = 0; i < chart.series.size(); ++i) {
    if (chart.markers) continue;
    out += series_group(i, band(chart.series[i], frame, style_of(chart, i).colour));
  }
  for (std::size_t i = 0; i < chart.series.size(); ++i) {
    const SeriesStyle style = style_of(chart, i);
    out += series_group(i, curve(chart.series[i].points, frame, style.stroke(kCurveWidth)) +
                               (chart.markers ? dots(chart.series[i], frame, style.colour) : "") +
                               diverged_curves(chart.series[i], frame, style));
  }
  return out;
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

bool has_curves(const Chart& chart) {
  const ChartFrame frame{.x = {}, .y = {}, .log_y = chart.log_y, .log_x = chart.log_x};
  const auto has_two = [&](const std::vector<ChartPoint>& points) {
    Range places;
    for (const ChartPoint& p : points) {
      if (frame.drawable(p)) places.take(p.x);
    }
    return places.low < places.high;
  };
  return std::any_of(chart.series.begin(), chart.series.end(), [&](const ChartSeries& series) {
    return has_two(series.points) ||
           std::any_of(series.diverged.begin(), series.diverged.end(), has_two);
  });
}

std::string plot_svg(const Chart& chart) {
  return fmt::format(R"(<svg class="plot" xmlns="http://www.w3.org/2000/svg" role="img" )"
                     R"(aria-label="{}" viewBox="0 0 {:.0f} {:.0f}">{}</svg>)",
                     escape_markup(chart.title), kPlotWidth, kPlotHeight, plot(chart));
}

std::string to_svg(const Chart& chart) { return to_svg(ChartGrid{chart.title, {chart}}); }

std::string to_svg(const ChartGrid& grid) {
  constexpr double kTitle = 34;
  constexpr double kRow = 19;
  constexpr double kLetter = 7.2;  // the widest usual one of a name, at this size of text
  constexpr std::size_t kColumns = 3;
  if (grid.panels.empty()) return {};
  const bool single = grid.panels.size() == 1;
  const std::size_t columns = std::min(kColumns, grid.panels.size());
  const std::size_t lines = (grid.panels.size() + columns - 1) / columns;
  const double panel = kPlotHeight + (single ? 0 : kRow);  // each has a title of its own
  const std::vector<LegendEntry> entries = legend_of(widest_legend(grid));
  std::size_t longest = 0;
  for (const LegendEntry& entry : entries) longest = std::max(longest, entry.name.size());
  const double legend = kPlotWidth * static_cast<double>(columns) + 10;
  const double width = legend + kSampleWidth + 20 + kLetter * static_cast<double>(longest);
  const double rows = kRow * static_cast<double>(entries.size());
  const double height = kTitle + std::max(panel * static_cast<double>(lines), kPlotTop + rows + 8);
  std::string out =
      fmt::format(R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0:.0f} {1:.0f}" )"
                  R"(width="{0:.0f}" height="{1:.0f}" font-family="sans-serif" font-size="12">)"
                  R"(<rect width="100%" height="100%" fill="white"/>)",
                  width, height);
  const double middle = kPlotWidth * (static_cast<double>(columns) - 1) / 2;
  out += label_at(middle + (kPlotLeft + kPlotRight) / 2, 22, "middle", grid.title,
                  R"( font-size="15")");
  for (std::size_t i = 0; i < grid.panels.size(); ++i) {
    const double x = kPlotWidth * static_cast<double>(i % columns);
    const std::size_t line = i / columns;
    const double y = kTitle + panel * static_cast<double>(line) + (single ? 0 : kRow);
    if (!single) {
      out += label_at(x + (kPlotLeft + kPlotRight) / 2, y, "middle", grid.panels[i].title,
                      R"( font-size="13")");
    }
    out += fmt::format(R"x(<g transform="translate({:.0f} {:.0f})">{}</g>)x", x, y,
                       plot(grid.panels[i]));
  }
  double y = kTitle + kPlotTop;
  for (const LegendEntry& entry : entries) {
    out +=
        fmt::format(R"x(<g transform="translate({:.0f} {:.2f})">{}</g>)x", legend, y, entry.sample);
    out += label_at(legend + kSampleWidth + 6, y + 10, "start", entry.name);
    y += kRow;
  }
  return out + "</svg>\n";
}

}  // namespace rode::lab
