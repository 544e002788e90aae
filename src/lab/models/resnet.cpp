// SPDX-License-Identifier: Apache-2.0
// ResNet-50 as torchvision has it, and a small residual network for images of 32 pixels.
//
// He et al., "Deep Residual Learning for Image Recognition" (2015); of a bottleneck the 3x3
// convolution has the stride. small-resnet is that paper's network for CIFAR: a 3x3 convolution,
// three stages of basic blocks of widths w, 2w, 4w, `layers` blocks in all; shortcuts that change
// shape are 1x1 convolutions. Convolutions are drawn normal with variance 2 / fan-out, the
// classifier uniform within 1/sqrt(fan-in); every BatchNorm begins as 1 and 0.
#include <cmath>

#include <ATen/ATen.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include "lab/models/architectures.h"
#include "rode/error.h"

namespace rode::lab {
namespace {

namespace nn = ::torch::nn;

nn::Conv2d conv(std::int64_t in, std::int64_t out, std::int64_t size, std::int64_t stride) {
  return nn::Conv2d(nn::Conv2dOptions(in, out, size).stride(stride).padding(size / 2).bias(false));
}

struct BlockShape {
  std::int64_t in, width, out, stride;
  bool is_bottleneck;
};

struct ResidualBlock : nn::Module {
  explicit ResidualBlock(const BlockShape& s) {
    if (s.is_bottleneck) {
      add(conv(s.in, s.width, 1, 1), s.width);
      add(conv(s.width, s.width, 3, s.stride), s.width);
      add(conv(s.width, s.out, 1, 1), s.out);
    } else {
      add(conv(s.in, s.width, 3, s.stride), s.width);
      add(conv(s.width, s.out, 3, 1), s.out);
    }
    if (s.in == s.out && s.stride == 1) return;
    downsample = register_module(
        "downsample", nn::Sequential(conv(s.in, s.out, 1, s.stride), nn::BatchNorm2d(s.out)));
  }

  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = x;
    for (std::size_t i = 0; i < convs.size(); ++i) {
      if (i > 0) y = at::relu(y);
      y = norms[i]->forward(convs[i]->forward(y));
    }
    return at::relu(y + (downsample.is_empty() ? x : downsample->forward(x)));
  }

  void add(const nn::Conv2d& layer, std::int64_t channels) {
    const std::string number = std::to_string(convs.size() + 1);
    convs.push_back(register_module("conv" + number, layer));
    norms.push_back(register_module("bn" + number, nn::BatchNorm2d(channels)));
  }

  std::vector<nn::Conv2d> convs;
  std::vector<nn::BatchNorm2d> norms;
  nn::Sequential downsample{nullptr};
};

struct Stage {
  std::int64_t blocks, width;
};

struct ResNet : nn::Module {
  ResNet(const std::vector<Stage>& stages, bool is_large, std::int64_t classes)
      : pools(is_large),
        conv1(register_module("conv1", conv(3, stages[0].width, is_large ? 7 : 3, pools ? 2 : 1))),
        bn1(register_module("bn1", nn::BatchNorm2d(stages[0].width))) {
    const std::int64_t expansion = is_large ? 4 : 1;
    std::int64_t in = stages[0].width;
    for (const Stage& stage : stages) {
      nn::Sequential layer;
      for (std::int64_t i = 0; i < stage.blocks; ++i) {
        const std::int64_t stride = i == 0 && !layers.empty() ? 2 : 1;
        const std::int64_t out = stage.width * expansion;
        layer->push_back(
            std::make_shared<ResidualBlock>(BlockShape{in, stage.width, out, stride, is_large}));
        in = out;
      }
      layers.push_back(register_module("layer" + std::to_string(layers.size() + 1), layer));
    }
    fc = register_module("fc", nn::Linear(in, classes));
  }

  at::Tensor forward(const at::Tensor& images) {
    at::Tensor x = at::relu(bn1->forward(conv1->forward(images)));
    if (pools) x = at::max_pool2d(x, {3, 3}, {2, 2}, {1, 1});
    for (nn::Sequential& layer : layers) x = layer->forward(x);
    return fc->forward(x.mean({2, 3}));
  }

  bool pools;
  nn::Conv2d conv1;
  nn::BatchNorm2d bn1;
  std::vector<nn::Sequential> layers;
  nn::Linear fc{nullptr};
};

class ImageModel : public Model {
 public:
  ImageModel(const ModelSpec& config, std::shared_ptr<ResNet> network)
      : Model(config), network_(std::move(network)) {}

  nn::Module& module() override { return *network_; }
  const nn::Module& module() const override { return *network_; }
  std::string architecture() const override { return config().kind; }
  at::Tensor logits(const at::Tensor& input) override {
    if (input.dim() != 4 || input.size(1) != 3) {
      throw Error(ErrorKind::shape, "model",
                  "images of rank " + std::to_string(input.dim()) + "; expected (N, 3, H, W)");
    }
    return network_->forward(input);
  }
  at::Tensor loss(const at::Tensor& input, const at::Tensor& target) override {
    const at::Tensor out = logits(input);
    return at::cross_entropy_loss(out.scalar_type() == at::kDouble ? out : out.to(at::kFloat),
                                  target);
  }

 private:
  std::shared_ptr<ResNet> network_;
};

void draw_weights(const ResNet& network, WeightSource& draw) {
  const double bound = 1 / std::sqrt(static_cast<double>(network.fc->weight.size(1)));
  for (const auto& entry : network.named_parameters()) {
    const at::Tensor& weight = entry.value();
    if (entry.key().starts_with("fc.")) {
      draw.uniform(weight, bound);
    } else if (weight.dim() == 4) {
      const std::int64_t fan_out = weight.size(0) * weight.size(2) * weight.size(3);
      draw.normal(weight, std::sqrt(2.0 / static_cast<double>(fan_out)));
    } else {
      WeightSource::constant(weight, entry.key().ends_with(".bias") ? 0 : 1);
    }
  }
}

}  // namespace

std::unique_ptr<Model> make_resnet(const ModelSpec& config, WeightSource& draw) {
  const bool is_large = config.kind == "resnet50";
  std::vector<Stage> stages{{3, 64}, {4, 128}, {6, 256}, {3, 512}};
  if (!is_large) {
    const std::int64_t n = config.layers;  // spread over three stages, the first ones first
    stages = {{(n + 2) / 3, config.width}, {(n + 1) / 3, 2 * config.width}};
    stages.push_back({n / 3, 4 * config.width});
  }
  auto network = std::make_shared<ResNet>(stages, is_large, config.classes);
  draw_weights(*network, draw);
  return std::make_unique<ImageModel>(config, std::move(network));
}

}  // namespace rode::lab
