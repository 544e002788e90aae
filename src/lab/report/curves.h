// SPDX-License-Identifier: Apache-2.0
// What each chart of a comparison shows: mean and deviation over seeds.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lab/report/chart.h"
#include "lab/report/comparison.h"

namespace rode::lab {

enum class Against { steps, units, seconds };

// What of the log a curve shows. As in the paper, only the noisy figures of single steps are
// smoothed (training, gradient and update); what an evaluation measures never is.
struct Shown {
  std::string kind;  // of a line
  std::string key;
  bool smooth = false;
  std::int64_t from = 0;  // step
  Against against = Against::steps;
  double scale = 1;
  bool exponential = false;  // perplexity, of the loss
};

constexpr double kSmoothing = 0.9;  // of an exponential average; the paper does not give its own

// One value per seed at each step, and where it lies on the axis: the seeds of a step have seconds
// of their own, whose mean is the place.
class Curve {
 public:
  void add(std::int64_t step, double x, double y);
  // At most as many as pixels can show; the last one always.
  std::vector<ChartPoint> points() const;

 private:
  struct At {
    std::vector<double> x;
    std::vector<double> y;
  };
  std::map<std::int64_t, At> steps_;
};

ChartSeries series_of(const Comparison& comparison, const OptimizerSummary& optimizer,
                      const Shown& shown);

// By the name of their files, in the order of a page; only those with a curve to see.
using NamedCharts = std::vector<std::pair<std::string, Chart>>;
NamedCharts charts_of(const Comparison& comparison);

// Final loss against lr, where an optimizer was run with several: of those with the same lr the
// lowest. Empty where none was.
Chart rates_chart(const Comparison& comparison);

}  // namespace rode::lab
