// SPDX-License-Identifier: Apache-2.0
// The lab's models on a GPU: the CPU's values, and checkpointing under autocast and dropout.
#include <ATen/Context.h>
#include <torch/cuda.h>

#include "lab/models/autocast.h"
#include "lab/models_support.h"

namespace rode::lab {
namespace {

class ModelsCuda : public testing::Test {
 protected:
  void SetUp() override {
    if (!::torch::cuda::is_available()) GTEST_SKIP() << "no usable cuda device";
    // Else convolutions round their operands to 10 bits.
    at::globalContext().setAllowTF32CuDNN(false);
  }
};

// Heads of 16, which the fused attention kernels take.
ModelSpec config_of(const std::string& kind, double dropout = 0) {
  ModelSpec config = tiny(kind, dropout);
  if (kind != "small-resnet") {
    config.width = 64;
    config.init_deviation = 0.15;
  }
  return config;
}

Example on_gpu(const Example& data) { return {data.input.cuda(), data.target.cuda()}; }

double relative_error(const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& exact) {
  double worst = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    const double error = (found[i].cpu() - exact[i].cpu()).norm().item<double>();
    worst = std::max(worst, error / exact[i].norm().item<double>());
  }
  return worst;
}

TEST_F(ModelsCuda, GiveTheCpusLossAndGradients) {
  for (const char* kind : {"gpt2", "qwen2", "small-resnet"}) {
    const auto model = make_model(config_of(kind), 3);
    const Example data = example(model->config());
    const std::vector<at::Tensor> expected = gradients(*model, data);
    model->module().to(at::kCUDA);
    EXPECT_LT(relative_error(gradients(*model, on_gpu(data)), expected), 1e-4) << kind;
  }
}

// Another mask of dropout, or fp32 in place of bf16, would be far off: shown first.
TEST_F(ModelsCuda, CheckpointingGivesThePlainGradients) {
  for (const char* kind : {"gpt2", "qwen2"}) {
    const auto model = make_model(config_of(kind, 0.2), 3);
    const Example data = on_gpu(example(model->config()));
    model->module().to(at::kCUDA);
    const auto run = [&](std::uint64_t seed, bool cast, bool checkpoint) {
      model->set_checkpoint_activations(checkpoint);
      ::torch::cuda::manual_seed(seed);
      model->module().zero_grad();
      at::Tensor loss;
      {
        const AutocastScope scope(at::kCUDA, {cast, at::kBFloat16});
        at::autocast::set_autocast_cache_enabled(true);
        loss = model->loss(data.input, data.target);
      }
      at::autocast::clear_cache();
      loss.backward();  // outside of autocast, on the device's own thread
      std::vector<at::Tensor> out{loss.detach()};
      for (const at::Tensor& p : model->module().parameters()) out.push_back(p.grad().clone());
      return out;
    };
    const auto plain = run(11, true, false);
    EXPECT_GT(relative_error(run(12, true, false), plain), 1e-1) << kind;
    EXPECT_GT(relative_error(run(11, false, false), plain), 1e-3) << kind;
    EXPECT_LT(relative_error(run(11, true, true), plain), 1e-5) << kind;
  }
}

}  // namespace
}  // namespace rode::lab
