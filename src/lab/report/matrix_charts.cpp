// SPDX-License-Identifier: Apache-2.0
// Curves of single matrices, by kind and layer, and over all of them.
#include "lab/report/matrix_charts.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <functional>
#include <map>

#include <fmt/format.h>

namespace rode::lab {
namespace {

using Reader = std::function<std::optional<double>(const Json& matrix)>;

bool all_digits(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return std::isdigit(static_cast<unsigned char>(c)) != 0;
  });
}

std::vector<std::string> parts_of(const std::string& name) {
  std::vector<std::string> parts(1);
  for (const char c : name) {
    if (c == '.') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

std::string joined(const std::vector<std::string>& parts, std::size_t from) {
  std::string out;
  for (std::size_t i = from; i < parts.size(); ++i) out += (i == from ? "" : ".") + parts[i];
  return out;
}

Reader value_of(const char* key) {
  return [key](const Json& matrix) { return number_at(matrix, key); };
}

// Lines of a kind that have figures of matrices.
template <class Work>
void for_matrices(const RunSummary& run, std::string_view kind, Work&& work) {
  for (const Json& line : run.log) {
    if (text_at(line, "kind") != kind) continue;
    const auto found = line.find("matrices");
    if (found == line.end() || !found->is_object()) continue;
    work(line["step"].get<std::int64_t>(), *found);
  }
}

std::optional<double> mean_over(const Json& matrices, const Reader& read) {
  std::vector<double> values;
  for (const auto& [name, matrix] : matrices.items()) {
    if (const auto value = read(matrix)) values.push_back(*value);
  }
  const auto spread = spread_of(values);
  return spread ? std::optional(spread->mean) : std::nullopt;
}

void add_mean(Curve& curve, const RunSummary& run, const Reader& read) {
  for_matrices(run, "step", [&](std::int64_t step, const Json& matrices) {
    if (const auto mean = mean_over(matrices, read)) {
      curve.add(step, static_cast<double>(step), *mean);
    }
  });
}

// Geometric mean of radius over first radius.
void add_relative_radius(Curve& curve, const RunSummary& run) {
  std::map<std::string, double> first;
  for_matrices(run, "evaluation", [&](std::int64_t step, const Json& matrices) {
    double sum = 0;
    double count = 0;
    for (const auto& [name, matrix] : matrices.items()) {
      const auto radius = number_at(matrix, "radius");
      if (!radius || !(*radius > 0)) continue;
      sum += std::log(*radius / first.emplace(name, *radius).first->second);
      ++count;
    }
    if (count > 0) curve.add(step, static_cast<double>(step), std::exp(sum / count));
  });
}

Chart summary_chart(const Comparison& comparison, Chart chart,
                    const std::function<void(Curve&, const RunSummary&)>& add) {
  chart.x_label = "step";
  const std::vector<const OptimizerSummary*> shown = in_charts(comparison);
  for (std::size_t i = 0; i < shown.size(); ++i) {
    const OptimizerSummary* optimizer = shown[i];
    ChartSeries series{.name = optimizer->label};
    series.style = i;
    Curve finished;
    for (const RunSummary& run : optimizer->runs) {
      if (run.finished()) add(finished, run);
      if (!run.diverged()) continue;
      Curve own;
      add(own, run);
      if (auto points = own.points(); !points.empty()) series.diverged.push_back(std::move(points));
    }
    series.points = finished.points();
    // Other optimizers have no angles: not in the legend either.
    if (!series.points.empty() || !series.diverged.empty()) chart.series.push_back(series);
  }
  return chart;
}

// Panels in the order in which the model has the matrices; the layers in theirs.
ChartGrid grid_of(const OptimizerSummary& optimizer, const std::string& title,
                  const std::string& y_label, std::string_view line, const char* key) {
  std::vector<std::string> kinds;
  std::vector<std::string> layers;
  std::map<std::pair<std::string, std::string>, Curve> curves;
  const auto take = [](std::vector<std::string>& list, const std::string& name) {
    if (std::find(list.begin(), list.end(), name) == list.end()) list.push_back(name);
  };
  for (const RunSummary& run : optimizer.runs) {
    if (!run.finished()) continue;
    for_matrices(run, line, [&](std::int64_t step, const Json& matrices) {
      for (const auto& [name, matrix] : matrices.items()) {
        const auto value = number_at(matrix, key);
        if (!value) continue;
        MatrixName parsed = parse_matrix_name(name);
        if (parsed.layer.empty()) parsed.layer = parsed.kind;
        take(kinds, parsed.kind);
        take(layers, parsed.layer);
        curves[{parsed.kind, parsed.layer}].add(step, static_cast<double>(step), *value);
      }
    });
  }
  std::map<std::string, int> short_names;
  for (const std::string& kind : kinds) ++short_names[parts_of(kind).back()];
  ChartGrid grid{.title = title};
  for (const std::string& kind : kinds) {
    const std::string last = parts_of(kind).back();
    Chart panel{.title = short_names[last] == 1 && !all_digits(last) ? last : kind,
                .x_label = "step",
                .y_label = y_label};
    panel.ordered = true;
    for (const std::string& layer : layers) {
      panel.series.push_back({.name = layer, .points = curves[{kind, layer}].points()});
    }
    if (has_curves(panel)) grid.panels.push_back(std::move(panel));
  }
  return grid;
}

}  // namespace

MatrixName parse_matrix_name(const std::string& name) {
  std::vector<std::string> parts = parts_of(name);
  if (parts.size() > 1 && parts.back() == "weight") parts.pop_back();
  for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
    if (!all_digits(parts[i])) continue;
    // "layer1.0" is a stage and its block, "h.3" a layer.
    const bool staged =
        i > 0 && !parts[i - 1].empty() && all_digits(parts[i - 1].substr(parts[i - 1].size() - 1));
    return {joined(parts, i + 1), staged ? parts[i - 1] + "." + parts[i] : "layer " + parts[i]};
  }
  return {joined(parts, 0), {}};
}

NamedCharts matrix_summaries(const Comparison& comparison) {
  NamedCharts charts;
  const auto add = [&](const char* file, Chart chart, auto&& curve) {
    chart = summary_chart(comparison, std::move(chart), curve);
    if (has_curves(chart)) charts.emplace_back(file, std::move(chart));
  };
  const auto mean_of = [](Reader read) {
    return [read = std::move(read)](Curve& curve, const RunSummary& run) {
      add_mean(curve, run, read);
    };
  };
  add("matrix_radius",
      {.title = "Radius of the matrices, relative to the start", .y_label = "geometric mean"},
      add_relative_radius);
  add("matrix_angle",
      {.title = "Angle of a step, mean over the matrices", .y_label = "radians", .log_y = true},
      mean_of(value_of("theta")));
  add("matrix_radial",
      {.title = "Change of the radius in a step, mean over the matrices",
       .y_label = "relative",
       .log_y = true},
      mean_of([](const Json& matrix) -> std::optional<double> {
        const auto before = number_at(matrix, "rho");
        const auto after = number_at(matrix, "rho_next");
        if (!before || !after || !(*before > 0)) return {};
        return std::abs(*after / *before - 1);
      }));
  add("matrix_momentum",
      {.title = "Norm of the conditioned momentum, mean over the matrices", .y_label = "q"},
      mean_of(value_of("q")));
  // Without the damping it is 1 everywhere: nothing to see.
  Chart damping = summary_chart(
      comparison, {.title = "SNR damping, mean over the matrices", .y_label = "gamma"},
      mean_of(value_of("gamma")));
  std::erase_if(damping.series, [](const ChartSeries& series) {
    return std::all_of(series.points.begin(), series.points.end(),
                       [](const ChartPoint& p) { return std::abs(p.y - 1) < 1e-9; });
  });
  if (has_curves(damping)) charts.emplace_back("matrix_damping", std::move(damping));
  return charts;
}

std::vector<std::pair<std::string, ChartGrid>> matrix_grids(const Comparison& comparison) {
  std::vector<std::pair<std::string, ChartGrid>> grids;
  std::map<std::string, int> used;
  for (const OptimizerSummary* optimizer : in_charts(comparison)) {
    // Labels have characters that files should not; "@" is in no name.
    const int count = ++used[optimizer->name];
    const std::string file =
        count == 1 ? optimizer->name : fmt::format("{}@{}", optimizer->name, count);
    ChartGrid radius = grid_of(*optimizer, "Radius of every matrix: " + optimizer->label, "radius",
                               "evaluation", "radius");
    if (!radius.panels.empty()) grids.emplace_back("radius-" + file, std::move(radius));
    ChartGrid angle = grid_of(*optimizer, "Angle of a step, every matrix: " + optimizer->label,
                              "radians", "step", "theta");
    if (!angle.panels.empty()) grids.emplace_back("angle-" + file, std::move(angle));
  }
  return grids;
}

}  // namespace rode::lab
