// SPDX-License-Identifier: Apache-2.0
// Shows that an installed rode can be included, linked and called.
#include <cmath>
#include <iostream>
#include <vector>

#include <rode/rode.h>

int main() {
  std::vector<float> weight(6 * 4, 0.5F), grad(6 * 4);
  for (std::size_t i = 0; i < grad.size(); ++i) grad[i] = static_cast<float>(i) - 7;
  rode::Optimizer optimizer(
      {{"weight", rode::view(weight.data(), {6, 4}), rode::view(grad.data(), {6, 4})}},
      rode::Method::by_name("rode", {{"lr", "0.01"}}));
  optimizer.step();
  const bool moved = std::abs(optimizer.global_diagnostics().update_norm) > 1e-3;
  std::cout << "rode " << rode::version() << (moved ? "" : ": the step moved nothing") << '\n';
  return moved ? 0 : 1;
}
