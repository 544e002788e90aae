// SPDX-License-Identifier: Apache-2.0
// Figures of the report's page.
#include "lab/report/html_chart.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lab/report/chart_frame.h"

namespace rode::lab {
namespace {

using Json = nlohmann::ordered_json;

// Six digits: more than a reader wants, in half the bytes.
double rounded(double value) {
  const std::string text = fmt::format("{:.6g}", value);
  double out = value;
  std::from_chars(text.data(), text.data() + text.size(), out);
  return out;
}

void add_curve(Json& curves, const std::vector<ChartPoint>& points, const ChartFrame& frame,
               const LegendEntry& entry, std::size_t number, const std::string& colour) {
  Json x = Json::array();
  Json y = Json::array();
  Json spread = Json::array();
  bool wide = false;
  for (const ChartPoint& p : points) {
    if (!frame.drawable(p)) continue;
    x.push_back(rounded(p.x));
    y.push_back(rounded(p.y));
    spread.push_back(rounded(p.spread));
    wide = wide || p.spread > 0;
  }
  if (x.empty()) return;
  Json curve = {{"name", entry.name}, {"entry", number}, {"colour", colour}};
  curve["x"] = std::move(x);
  curve["y"] = std::move(y);
  if (wide) curve["s"] = std::move(spread);
  curves.push_back(std::move(curve));
}

std::string values_of(const Chart& chart, const std::vector<LegendEntry>& legend) {
  const ChartFrame frame = frame_of(chart);
  Json json = {{"label", chart.x_label},
               {"box", {kPlotLeft, kPlotRight, kPlotTop, kPlotBottom}},
               {"x", {frame.x.low, frame.x.high}},
               {"y", {frame.y.low, frame.y.high}},
               {"log", frame.log_y},
               {"logX", frame.log_x},
               {"curves", Json::array()}};
  for (std::size_t i = 0; i < legend.size(); ++i) {
    if (legend[i].series < 0) continue;
    const auto number = static_cast<std::size_t>(legend[i].series);
    const ChartSeries& series = chart.series[number];
    const std::string colour = style_of(chart, number).colour;
    if (!legend[i].diverged) {
      add_curve(json["curves"], series.points, frame, legend[i], i, colour);
      continue;
    }
    for (const auto& run : series.diverged) {
      add_curve(json["curves"], run, frame, legend[i], i, colour);
    }
  }
  // A name must not end the element that holds it.
  std::string text;
  for (const char c : json.dump()) text += c == '<' ? std::string("\\u003c") : std::string(1, c);
  return text;
}

}  // namespace

std::string html_sample(const LegendEntry& entry) {
  return fmt::format(R"(<svg class="sample" width="{0:.0f}" height="{1:.0f}" )"
                     R"(viewBox="0 0 {0:.0f} {1:.0f}" aria-hidden="true">{2}</svg>)",
                     kSampleWidth, kSampleHeight, entry.sample);
}

std::string html_legend(const std::vector<LegendEntry>& legend) {
  std::string out = "<ul class=\"legend\">";
  for (std::size_t i = 0; i < legend.size(); ++i) {
    const std::string series =
        legend[i].series < 0 ? "" : fmt::format(R"( data-series="{}")", legend[i].series);
    out += fmt::format(R"(<li data-entry="{}"{}>{}<span>{}</span></li>)", i, series,
                       html_sample(legend[i]), escape_markup(legend[i].name));
  }
  return out + "</ul>\n";
}

std::string html_figure(const Chart& chart) {
  const std::vector<LegendEntry> legend = legend_of(chart);
  return fmt::format(
      "<figure>\n<figcaption>{}</figcaption>\n{}\n{}"
      "<div class=\"tip\" aria-live=\"polite\" hidden></div>\n"
      "<script type=\"application/json\" class=\"values\">{}</script>\n</figure>\n",
      escape_markup(chart.title), plot_svg(chart), html_legend(legend), values_of(chart, legend));
}

std::string html_grid(const ChartGrid& grid, bool open) {
  std::string out =
      fmt::format("<details class=\"grid\"{}><summary>{}</summary>\n<div class=\"panels\">\n",
                  open ? " open" : "", escape_markup(grid.title));
  for (const Chart& panel : grid.panels) out += html_figure(panel);
  return out + "</div>\n" + html_legend(legend_of(widest_legend(grid))) + "</details>\n";
}

}  // namespace rode::lab
