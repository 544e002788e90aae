// SPDX-License-Identifier: Apache-2.0
// GPT-2: learned positions, LayerNorm before each part, fused q/k/v, GELU by tanh.
//
// Radford et al., "Language Models are Unsupervised Multitask Learners" (2019). Weights are drawn
// as transformers does: normal with deviation init_deviation, projections back into the residual
// stream with that over sqrt(2 layers), biases 0. Files hold projections as (in, out).
#include <cmath>

#include <ATen/ATen.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/normalization.h>

#include "lab/models/architectures.h"
#include "lab/models/decoder.h"

namespace rode::lab {
namespace {

namespace nn = ::torch::nn;

nn::LayerNorm layer_norm(const ModelSpec& config) {
  return nn::LayerNorm(nn::LayerNormOptions({config.width}).eps(config.norm_eps));
}

struct Attention : nn::Module {
  explicit Attention(const ModelSpec& config)
      : heads(config.heads),
        dropout(config.dropout),
        c_attn(register_module("c_attn", nn::Linear(config.width, 3 * config.width))),
        c_proj(register_module("c_proj", nn::Linear(config.width, config.width))) {}

  at::Tensor forward(const at::Tensor& x) {
    const std::vector<at::Tensor> qkv = c_attn->forward(x).chunk(3, -1);
    return c_proj->forward(causal_attention(split_heads(qkv[0], heads), split_heads(qkv[1], heads),
                                            split_heads(qkv[2], heads),
                                            is_training() ? dropout : 0));
  }

  std::int64_t heads;
  double dropout;
  nn::Linear c_attn, c_proj;
};

struct Mlp : nn::Module {
  explicit Mlp(const ModelSpec& config)
      : c_fc(register_module("c_fc", nn::Linear(config.width, config.mlp_width))),
        c_proj(register_module("c_proj", nn::Linear(config.mlp_width, config.width))) {}

  at::Tensor forward(const at::Tensor& x) {
    return c_proj->forward(at::gelu(c_fc->forward(x), "tanh"));
  }

  nn::Linear c_fc, c_proj;
};

struct Layer : nn::Module {
  explicit Layer(const ModelSpec& config)
      : ln_1(register_module("ln_1", layer_norm(config))),
        attn(register_module("attn", std::make_shared<Attention>(config))),
        ln_2(register_module("ln_2", layer_norm(config))),
        mlp(register_module("mlp", std::make_shared<Mlp>(config))),
        dropout(config.dropout) {}

  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = x + at::dropout(attn->forward(ln_1->forward(x)), dropout, is_training());
    return y + at::dropout(mlp->forward(ln_2->forward(y)), dropout, is_training());
  }

  nn::LayerNorm ln_1;
  std::shared_ptr<Attention> attn;
  nn::LayerNorm ln_2;
  std::shared_ptr<Mlp> mlp;
  double dropout;
};

struct Body : nn::Module {
  explicit Body(const ModelSpec& config)
      : wte(register_module("wte", nn::Embedding(config.vocab_size, config.width))),
        wpe(register_module("wpe", nn::Embedding(config.positions, config.width))),
        h(register_module("h", nn::ModuleList())),
        dropout(config.dropout) {
    for (std::int64_t i = 0; i < config.layers; ++i) h->push_back(std::make_shared<Layer>(config));
    ln_f = register_module("ln_f", layer_norm(config));
  }

  at::Tensor forward(const at::Tensor& tokens, bool checkpoint) {
    const at::Tensor positions = at::arange(tokens.size(1), tokens.options());
    at::Tensor x = wte->forward(tokens) + wpe->forward(positions);
    x = at::dropout(x, dropout, is_training());
    for (std::size_t i = 0; i < h->size(); ++i) {
      x = run_block(h->ptr<Layer>(i), x, checkpoint, is_training() && dropout > 0);
    }
    return ln_f->forward(x);
  }

  nn::Embedding wte, wpe;
  nn::ModuleList h;
  nn::LayerNorm ln_f{nullptr};
  double dropout;
};

struct Gpt2 : nn::Module {
  explicit Gpt2(const ModelSpec& config)
      : transformer(register_module("transformer", std::make_shared<Body>(config))) {
    if (config.tied) return;
    lm_head = register_module(
        "lm_head", nn::Linear(nn::LinearOptions(config.width, config.vocab_size).bias(false)));
  }

  at::Tensor hidden(const at::Tensor& tokens) { return transformer->forward(tokens, checkpoint); }
  const at::Tensor& head() const {
    return lm_head.is_empty() ? transformer->wte->weight : lm_head->weight;
  }
  static bool is_stored_transposed(std::string_view name) {
    return name.ends_with("c_attn.weight") || name.ends_with("c_proj.weight") ||
           name.ends_with("c_fc.weight");
  }

  std::shared_ptr<Body> transformer;
  nn::Linear lm_head{nullptr};
  bool checkpoint = false;
};

void draw_weights(const Gpt2& network, const ModelSpec& config, WeightSource& draw) {
  const double residual =
      config.init_deviation / std::sqrt(2.0 * static_cast<double>(config.layers));
  for (const auto& entry : network.named_parameters()) {
    const std::string& name = entry.key();
    if (name.ends_with("c_proj.weight")) {
      draw.normal(entry.value(), residual);
    } else if (entry.value().dim() > 1) {
      draw.normal(entry.value(), config.init_deviation);
    } else {
      WeightSource::constant(entry.value(), name.ends_with(".bias") ? 0 : 1);
    }
  }
}

}  // namespace

std::unique_ptr<Model> make_gpt2(const ModelSpec& config, WeightSource& draw) {
  auto network = std::make_shared<Gpt2>(config);
  draw_weights(*network, config, draw);
  return std::make_unique<Decoder<Gpt2>>(config, std::move(network), "GPT2LMHeadModel");
}

}  // namespace rode::lab
