// SPDX-License-Identifier: Apache-2.0
// A chart as a figure of a page: plot, legend below it, and the values for page.js.
#pragma once

#include <string>
#include <vector>

#include "lab/report/chart.h"
#include "lab/report/series_style.h"

namespace rode::lab {

std::string html_figure(const Chart& chart);
// Panels with one legend below them; folded unless `open`.
std::string html_grid(const ChartGrid& grid, bool open);
std::string html_legend(const std::vector<LegendEntry>& legend);
// The piece of a curve next to a name.
std::string html_sample(const LegendEntry& entry);

}  // namespace rode::lab
