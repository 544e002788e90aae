// SPDX-License-Identifier: Apache-2.0
// The lab's models: sizes, routing, first weights, causality and derivatives.
#include <cmath>

#include "lab/models/autocast.h"
#include "lab/models_support.h"
#include "rode/torch.h"

namespace rode::lab {
namespace {

struct Counts {
  std::int64_t managed = 0, delegated = 0;
};

Counts counts(const Model& model, Route route) {
  const auto routed = rode::torch::route_module(model.module(), route);
  Counts out;
  for (const at::Tensor& tensor : routed.matrices.tensors) out.managed += tensor.numel();
  for (const at::Tensor& tensor : routed.rest.tensors) out.delegated += tensor.numel();
  return out;
}

at::Tensor parameter(const Model& model, const std::string& name) {
  return model.module().named_parameters()[name];
}

double deviation(const at::Tensor& weight) {
  return weight.detach().to(at::kDouble).pow(2).mean().sqrt().item<double>();
}

// Five standard errors of a deviation that is estimated from so many numbers.
void expect_deviation(const at::Tensor& weight, double expected) {
  const double tolerance = 5 / std::sqrt(2.0 * static_cast<double>(weight.numel()));
  EXPECT_NEAR(deviation(weight) / expected, 1, tolerance);
}

TEST(Models, DecoderOf114MHasThePapersCountsAndFirstWeights) {
  const Task task = load_task("qwen2-114m");
  const auto model = make_model(task.model, 1);
  EXPECT_EQ(model->architecture(), "Qwen2ForCausalLM");
  const Counts found = counts(*model, task.train.route);
  EXPECT_EQ(found.managed, 75'497'472);
  EXPECT_EQ(found.delegated, 38'631'936);
  expect_deviation(parameter(*model, "model.embed_tokens.weight"), 0.02);
  expect_deviation(parameter(*model, "model.layers.11.self_attn.o_proj.weight"), 0.02);
  expect_deviation(parameter(*model, "model.layers.0.mlp.down_proj.weight"), 0.02);
  EXPECT_EQ(deviation(parameter(*model, "model.layers.0.self_attn.q_proj.bias")), 0);
  EXPECT_TRUE(at::equal(parameter(*model, "model.norm.weight"), at::ones({768})));
}

TEST(Models, Gpt2HasThePapersCountsAndFirstWeights) {
  const Task task = load_task("gpt2");
  const auto model = make_model(task.model, 1);
  const Counts found = counts(*model, task.train.route);
  EXPECT_EQ(found.managed, 84'934'656);
  EXPECT_EQ(found.managed + found.delegated, 124'439'808);
  expect_deviation(parameter(*model, "transformer.wpe.weight"), 0.02);
  expect_deviation(parameter(*model, "transformer.h.3.attn.c_attn.weight"), 0.02);
  expect_deviation(parameter(*model, "transformer.h.3.attn.c_proj.weight"), 0.02 / std::sqrt(24));
  expect_deviation(parameter(*model, "transformer.h.3.mlp.c_proj.weight"), 0.02 / std::sqrt(24));
  EXPECT_EQ(deviation(parameter(*model, "transformer.h.3.mlp.c_fc.bias")), 0);
  EXPECT_EQ(parameter(*model, "transformer.h.0.attn.c_attn.weight").sizes(),
            (std::vector<std::int64_t>{2304, 768}));
}

TEST(Models, ResNet50HasThePapersCountsAndFirstWeights) {
  const Task task = load_task("resnet50-imagenet");
  const auto model = make_model(task.model, 1);
  const Counts found = counts(*model, task.train.route);
  EXPECT_EQ(found.managed, 25'502'912);
  EXPECT_EQ(found.managed + found.delegated, 25'557'032);
  expect_deviation(parameter(*model, "conv1.weight"), std::sqrt(2.0 / (64 * 49)));
  expect_deviation(parameter(*model, "layer4.2.conv2.weight"), std::sqrt(2.0 / (512 * 9)));
  EXPECT_LE(parameter(*model, "fc.weight").abs().max().item<double>(), 1 / std::sqrt(2048.0));
  expect_deviation(parameter(*model, "fc.weight"), 1 / std::sqrt(3 * 2048.0));

  const auto cifar = make_model(load_task("resnet50-cifar100").model, 1);
  EXPECT_EQ(counts(*cifar, Route::vision).managed, 25'502'912 - 900 * 2048);
}

TEST(Models, EveryEmbeddedTaskOfTinySizeMakesALoss) {
  for (const char* name : {"tiny-lm", "tiny-vision"}) {
    const Task task = load_task(name);
    const auto model = make_model(task.model, 1);
    const bool language = task.is_language();
    const at::Tensor input = language
                                 ? whole_wave({2, task.data.sequence}, task.model.vocab_size, 1)
                                 : at::ones({2, 3, task.data.image_size, task.data.image_size});
    const std::int64_t choices = language ? task.model.vocab_size : task.model.classes;
    const at::Tensor target = whole_wave(
        language ? at::IntArrayRef({2, task.data.sequence}) : at::IntArrayRef({2}), choices, 3);
    const double loss = model->loss(input, target).item<double>();
    // Fresh weights know nothing: about the logarithm of the number of choices.
    EXPECT_NEAR(loss, std::log(static_cast<double>(choices)), 1) << name;
  }
}

TEST(Models, AnUntiedHeadIsAParameterOfTheRest) {
  for (const char* kind : {"gpt2", "qwen2"}) {
    ModelSpec config = tiny(kind);
    const Counts tied = counts(*make_model(config, 1), Route::language);
    config.tied = false;
    const Counts untied = counts(*make_model(config, 1), Route::language);
    EXPECT_EQ(untied.managed, tied.managed);
    EXPECT_EQ(untied.delegated, tied.delegated + config.vocab_size * config.width);
  }
}

TEST(Models, WeightsComeFromTheSeedAlone) {
  for (const char* kind : {"gpt2", "qwen2", "small-resnet"}) {
    at::manual_seed(5);
    const at::Tensor expected = at::rand({3});
    at::manual_seed(5);
    const auto first = make_model(tiny(kind), 7);
    EXPECT_TRUE(at::equal(at::rand({3}), expected)) << "the global generator moved";
    const auto again = make_model(tiny(kind), 7);
    const auto other = make_model(tiny(kind), 8);
    expect_equal(first->module().parameters(), again->module().parameters());
    EXPECT_FALSE(at::equal(first->module().parameters()[0], other->module().parameters()[0]));
  }
}

// Along one direction of length 1 a parameter, in double. The quotient's error is h^2 and the
// rounding of the loss over h, 1e-9; a smaller h than usual, so that no ReLU switches in between.
TEST(Models, GradientsAreTheDerivativesOfTheLoss) {
  for (const char* kind : {"gpt2", "qwen2", "small-resnet"}) {
    const auto model = make_model(tiny(kind), 3);
    model->module().to(at::kDouble);
    Example data = example(model->config());
    if (data.input.is_floating_point()) data.input = data.input.to(at::kDouble);
    const std::vector<at::Tensor> grads = gradients(*model, data);
    const at::NoGradGuard no_grad;
    const double h = 1e-7;
    const auto named = model->module().named_parameters();
    for (std::size_t i = 0; i < named.size(); ++i) {
      at::Tensor weight = named[i].value();
      at::Tensor way =
          at::sin(at::arange(1, weight.numel() + 1, at::kDouble) * 3.7).view(weight.sizes());
      way /= way.norm();
      const double slope = (grads[i + 1] * way).sum().item<double>();
      weight.add_(way, h);
      const double above = model->loss(data.input, data.target).item<double>();
      weight.add_(way, -2 * h);
      const double below = model->loss(data.input, data.target).item<double>();
      weight.add_(way, h);
      const double tolerance = 1e-5 * std::max(1e-2, std::abs(slope));
      EXPECT_GT(std::abs(slope), 10 * tolerance) << kind << ' ' << named[i].key();
      EXPECT_NEAR((above - below) / (2 * h), slope, tolerance) << kind << ' ' << named[i].key();
    }
  }
}

TEST(Models, DecodersSeeNoLaterToken) {
  for (const char* kind : {"gpt2", "qwen2"}) {
    const auto model = make_model(tiny(kind), 3);
    const at::NoGradGuard no_grad;
    at::Tensor tokens = example(model->config()).input;
    const at::Tensor before = model->logits(tokens);
    tokens[0][5] = (tokens[0][5] + 1) % 37;
    const at::Tensor change = (model->logits(tokens) - before)[0].abs().amax(1);
    EXPECT_LT(change.narrow(0, 0, 5).max().item<double>(), 1e-5) << kind;
    EXPECT_GT(change.narrow(0, 5, 4).min().item<double>(), 1e-3) << kind;
  }
}

TEST(Models, DropoutActsInTrainingOnly) {
  for (const char* kind : {"gpt2", "qwen2"}) {
    const auto model = make_model(tiny(kind, 0.3), 3);
    const at::NoGradGuard no_grad;
    const at::Tensor tokens = example(model->config()).input;
    EXPECT_FALSE(at::equal(model->logits(tokens), model->logits(tokens))) << kind;
    model->module().eval();
    EXPECT_TRUE(at::equal(model->logits(tokens), model->logits(tokens))) << kind;
  }
}

TEST(Models, TrainUnderAutocastAndWithBf16Parameters) {
  for (const char* kind : {"gpt2", "qwen2", "small-resnet"}) {
    const auto model = make_model(tiny(kind), 3);
    const Example data = example(model->config());
    const std::vector<at::Tensor> exact = gradients(*model, data);
    std::vector<at::Tensor> cast;
    {
      const AutocastScope scope(at::kCPU, {true, at::kBFloat16});
      cast = gradients(*model, data);
    }
    const double eps = 0x1.0p-8;  // of bf16
    // BatchNorm over a few numbers and ReLUs that switch make more of it in the vision model:
    // PyTorch's own autocast is off by up to a third on such a network.
    const double allowed = data.input.is_floating_point() ? 0.5 : 32 * eps;
    EXPECT_EQ(cast[0].scalar_type(), at::kFloat);
    EXPECT_FALSE(at::equal(cast[0], exact[0])) << kind << ": nothing was cast";
    EXPECT_NEAR(cast[0].item<double>(), exact[0].item<double>(), 4 * eps * exact[0].item<double>());
    for (std::size_t i = 1; i < cast.size(); ++i) {
      EXPECT_EQ(cast[i].scalar_type(), at::kFloat);
      const double error = (cast[i] - exact[i]).norm().item<double>();
      EXPECT_LT(error, allowed * exact[i].norm().item<double>()) << kind << " tensor " << i;
    }
    if (data.input.is_floating_point()) continue;
    model->module().to(at::kBFloat16);
    const std::vector<at::Tensor> rounded = gradients(*model, data);
    EXPECT_NEAR(rounded[0].item<double>(), exact[0].item<double>(), 16 * eps);
    EXPECT_EQ(rounded[1].scalar_type(), at::kBFloat16);
  }
}

TEST(Models, RefusesWhatItCannotBuildOrRead) {
  const auto message = [](const ModelSpec& config) {
    return error_of([&] { (void)make_model(config, 1); });
  };
  ModelSpec config = tiny("qwen2");
  config.heads = 16;
  config.kv_heads = 4;
  EXPECT_NE(message(config).find("even"), std::string::npos) << message(config);
  config.kind = "gpt3";
  EXPECT_NE(message(config).find("gpt3"), std::string::npos);
  const auto model = make_model(tiny("gpt2"), 1);
  const std::string text = error_of([&] { (void)model->logits(at::zeros({1, 13}, at::kLong)); });
  EXPECT_NE(text.find("12 positions"), std::string::npos) << text;
  const std::string vision =
      error_of([] { make_model(tiny("small-resnet"), 1)->set_checkpoint_activations(true); });
  EXPECT_NE(vision.find("BatchNorm"), std::string::npos) << vision;
}

}  // namespace
}  // namespace rode::lab
