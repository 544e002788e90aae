// SPDX-License-Identifier: Apache-2.0
// Trains a small network in LibTorch with RODE, under a scheduler, through a checkpoint.
#include <cstdio>
#include <sstream>

#include <rode/torch.h>
#include <torch/torch.h>

int main() {
  torch::manual_seed(0);
  torch::nn::Sequential model(torch::nn::Linear(8, 32), torch::nn::ReLU(),
                              torch::nn::Linear(32, 4));
  const torch::Tensor x = torch::randn({256, 8});
  const torch::Tensor y = torch::tanh(torch::matmul(x, torch::randn({8, 4})));

  // Weight matrices by RODE, biases by AdamW: two groups, routed by the types of the modules.
  const rode::RodeOptions options{.lr = 0.1, .lr_rho = 0.1, .lr_rest = 1e-2};
  rode::torch::RODE optimizer(*model, options);
  torch::optim::StepLR scheduler(optimizer, /*step_size=*/100, /*gamma=*/0.3);

  double loss = 0;
  for (int t = 0; t < 300; ++t) {
    optimizer.zero_grad();
    const torch::Tensor error = torch::mse_loss(model->forward(x), y);
    error.backward();
    optimizer.step();
    scheduler.step();
    loss = error.item<double>();
    if (t % 100 == 0) std::printf("step %3d  loss %.5f\n", t, loss);
  }
  std::printf("step 300  loss %.5f\n", loss);

  std::stringstream checkpoint;
  torch::save(optimizer, checkpoint);
  rode::torch::RODE resumed(*model, options);
  torch::load(resumed, checkpoint);
  std::printf("resumed at step %lld, lr %g\n", static_cast<long long>(resumed.steps_done()),
              resumed.options().get_lr());
  return loss < 0.05 && resumed.steps_done() == 300 ? 0 : 1;
}
