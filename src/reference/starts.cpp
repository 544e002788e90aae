// SPDX-License-Identifier: Apache-2.0
// RODE's on_zero = start: how long the first step of a zero matrix is, from all the others.
#include <algorithm>
#include <cmath>

#include "reference/blocks.h"
#include "reference/settings.h"

namespace rode::reference {
namespace {

std::vector<Matrix> matrices_of(const Started& one) {
  const Tensor& all = *one.parameter;
  if (!one.treatment.experts) return split(all, one.treatment);
  std::vector<Matrix> out;
  const auto count = static_cast<std::size_t>(all.shape[0]);
  const auto size = static_cast<std::ptrdiff_t>(all.data.size() / count);
  for (auto from = all.data.begin(); from != all.data.end(); from += size) {
    const Tensor expert{{all.shape.begin() + 1, all.shape.end()}, {from, from + size}};
    for (const Matrix& w : split(expert, one.treatment)) out.push_back(w);
  }
  return out;
}

double elements(const Matrix& w) {
  return static_cast<double>(w.rows) * static_cast<double>(w.cols);
}

}  // namespace

void set_starts(const Settings& settings, const std::vector<Started>& all) {
  if (!settings.contains("on_zero") || settings.at("on_zero") != "start") return;
  const double eps = number(settings, "eps");
  std::vector<double> sizes;  // root mean squares of the matrices that have a direction
  for (const Started& one : all)
    for (const Matrix& w : matrices_of(one))
      if (norm(w) > eps) sizes.push_back(norm(w) / std::sqrt(elements(w)));
  std::sort(sizes.begin(), sizes.end());
  for (const Started& one : all) {
    std::vector<double> norms;
    for (const Matrix& w : matrices_of(one)) {
      double size = 1.0 / std::sqrt(static_cast<double>(w.cols));  // of the fan-in
      if (!sizes.empty()) size = 0.5 * (sizes[(sizes.size() - 1) / 2] + sizes[sizes.size() / 2]);
      norms.push_back(norm(w) > eps ? 0.0 : std::sqrt(elements(w)) * size);
    }
    entry(*one.state, "start_norm", norms.size()).data = norms;
  }
}

}  // namespace rode::reference
