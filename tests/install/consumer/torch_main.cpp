// SPDX-License-Identifier: Apache-2.0
// Shows that an installed rode::torch can be included, linked and called.
#include <iostream>

#include <rode/torch.h>
#include <torch/nn/modules/linear.h>

int main() {
  torch::nn::Linear layer(4, 6);
  const at::Tensor before = layer->weight.detach().clone();
  rode::torch::RODE optimizer(*layer, rode::RodeOptions{.lr = 0.01});
  layer->forward(at::ones({3, 4})).square().sum().backward();
  optimizer.step();
  const bool moved = !layer->weight.detach().equal(before);
  std::cout << (moved ? "rode::torch stepped" : "the step moved nothing") << '\n';
  return moved ? 0 : 1;
}
