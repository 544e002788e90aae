// SPDX-License-Identifier: Apache-2.0
// The Qwen2-style decoder: RMSNorm, rotary positions, grouped-query attention with biases on
// q, k and v alone, SwiGLU.
//
// Yang et al., "Qwen2 Technical Report" (2024). Matrices and embedding are drawn normal with
// deviation init_deviation and no scaling by depth, biases are 0, as transformers does. Dropout is
// that of the attention weights.
#include <ATen/ATen.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>

#include "lab/models/architectures.h"
#include "lab/models/decoder.h"

namespace rode::lab {
namespace {

namespace nn = ::torch::nn;

nn::Linear linear(std::int64_t in, std::int64_t out, bool bias) {
  return nn::Linear(nn::LinearOptions(in, out).bias(bias));
}

struct RmsNorm : nn::Module {
  explicit RmsNorm(const ModelConfig& config)
      : eps(config.norm_eps), weight(register_parameter("weight", at::ones({config.width}))) {}

  at::Tensor forward(const at::Tensor& x) const { return rms_norm(x, weight, eps); }

  double eps;
  at::Tensor weight;
};

struct Attention : nn::Module {
  explicit Attention(const ModelConfig& config)
      : heads(config.heads),
        kv_heads(config.kv_heads),
        dropout(config.dropout),
        q_proj(register_module("q_proj", linear(config.width, config.width, true))),
        k_proj(register_module("k_proj", linear(config.width, kv_width(config), true))),
        v_proj(register_module("v_proj", linear(config.width, kv_width(config), true))),
        o_proj(register_module("o_proj", linear(config.width, config.width, false))) {}

  static std::int64_t kv_width(const ModelConfig& config) {
    return config.width / config.heads * config.kv_heads;
  }

  at::Tensor forward(const at::Tensor& x, const RotaryTable& rotary) {
    const at::Tensor q = rotary.rotate(split_heads(q_proj->forward(x), heads));
    const at::Tensor k = rotary.rotate(split_heads(k_proj->forward(x), kv_heads));
    const at::Tensor v = split_heads(v_proj->forward(x), kv_heads);
    return o_proj->forward(causal_attention(q, k, v, is_training() ? dropout : 0));
  }

  std::int64_t heads, kv_heads;
  double dropout;
  nn::Linear q_proj, k_proj, v_proj, o_proj;
};

struct Mlp : nn::Module {
  explicit Mlp(const ModelConfig& config)
      : gate_proj(register_module("gate_proj", linear(config.width, config.mlp_width, false))),
        up_proj(register_module("up_proj", linear(config.width, config.mlp_width, false))),
        down_proj(register_module("down_proj", linear(config.mlp_width, config.width, false))) {}

  at::Tensor forward(const at::Tensor& x) {
    return down_proj->forward(swiglu(gate_proj->forward(x), up_proj->forward(x)));
  }

  nn::Linear gate_proj, up_proj, down_proj;
};

struct Layer : nn::Module {
  explicit Layer(const ModelConfig& config)
      : self_attn(register_module("self_attn", std::make_shared<Attention>(config))),
        mlp(register_module("mlp", std::make_shared<Mlp>(config))),
        input_layernorm(register_module("input_layernorm", std::make_shared<RmsNorm>(config))),
        post_attention_layernorm(
            register_module("post_attention_layernorm", std::make_shared<RmsNorm>(config))) {}

  at::Tensor forward(const at::Tensor& x, const RotaryTable& rotary) {
    const at::Tensor y = x + self_attn->forward(input_layernorm->forward(x), rotary);
    return y + mlp->forward(post_attention_layernorm->forward(y));
  }

  std::shared_ptr<Attention> self_attn;
  std::shared_ptr<Mlp> mlp;
  std::shared_ptr<RmsNorm> input_layernorm, post_attention_layernorm;
};

struct Body : nn::Module {
  explicit Body(const ModelConfig& config)
      : embed_tokens(
            register_module("embed_tokens", nn::Embedding(config.vocab_size, config.width))),
        layers(register_module("layers", nn::ModuleList())),
        rotary(config.width / config.heads, config.rope_base),
        dropout(config.dropout) {
    for (std::int64_t i = 0; i < config.layers; ++i) {
      layers->push_back(std::make_shared<Layer>(config));
    }
    norm = register_module("norm", std::make_shared<RmsNorm>(config));
  }

  at::Tensor forward(const at::Tensor& tokens, bool checkpoint) {
    at::Tensor x = embed_tokens->forward(tokens);
    rotary.prepare(tokens.size(1), x);
    for (std::size_t i = 0; i < layers->size(); ++i) {
      x = run_block(layers->ptr<Layer>(i), x, checkpoint, is_training() && dropout > 0, rotary);
    }
    return norm->forward(x);
  }

  nn::Embedding embed_tokens;
  nn::ModuleList layers;
  std::shared_ptr<RmsNorm> norm;
  RotaryTable rotary;
  double dropout;
};

struct Qwen2 : nn::Module {
  explicit Qwen2(const ModelConfig& config)
      : model(register_module("model", std::make_shared<Body>(config))) {
    if (config.tied) return;
    lm_head = register_module("lm_head", linear(config.width, config.vocab_size, false));
  }

  at::Tensor hidden(const at::Tensor& tokens) { return model->forward(tokens, checkpoint); }
  const at::Tensor& head() const {
    return lm_head.is_empty() ? model->embed_tokens->weight : lm_head->weight;
  }
  static bool is_stored_transposed(std::string_view) { return false; }

  std::shared_ptr<Body> model;
  nn::Linear lm_head{nullptr};
  bool checkpoint = false;
};

}  // namespace

std::unique_ptr<Model> make_qwen2(const ModelConfig& config, WeightSource& draw) {
  auto network = std::make_shared<Qwen2>(config);
  for (const auto& entry : network->named_parameters()) {
    if (entry.value().dim() > 1) {
      draw.normal(entry.value(), config.init_deviation);
    } else {
      WeightSource::constant(entry.value(), entry.key().ends_with(".bias") ? 0 : 1);
    }
  }
  return std::make_unique<Decoder<Qwen2>>(config, std::move(network), "Qwen2ForCausalLM");
}

}  // namespace rode::lab
