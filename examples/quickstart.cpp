// SPDX-License-Identifier: Apache-2.0
// Fits a matrix to a target with RODE: the loop every trainer has.
#include <cstdio>
#include <vector>

#include <rode/rode.h>

int main() {
  std::vector<float> w(64 * 32), g(64 * 32);
  for (std::size_t i = 0; i < w.size(); ++i) w[i] = 0.1F * static_cast<float>(i % 7) - 0.3F;

  rode::Optimizer optimizer(
      {{"layer.weight", rode::view(w.data(), {64, 32}), rode::view(g.data(), {64, 32})}},
      rode::RodeOptions{.lr = 0.15, .lr_rho = 1e-1});
  const auto schedule = rode::Schedule::warmup_cosine(10, 200);

  double loss = 0;
  for (int t = 0; t < 200; ++t) {
    loss = 0;
    for (std::size_t i = 0; i < w.size(); ++i) {  // the gradient of 1/2 ||W - T||^2
      g[i] = w[i] - static_cast<float>(i % 5) + 2;
      loss += 0.5 * static_cast<double>(g[i]) * static_cast<double>(g[i]);
    }
    optimizer.step(schedule.multiplier(t));
    if (t % 50 == 0) std::printf("step %3d  loss %9.3f\n", t, loss);
  }
  std::printf("step 200  loss %9.3f\n", loss);
  return loss < 100 ? 0 : 1;
}
