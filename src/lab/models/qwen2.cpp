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
#include "lab/models/fused/ops.h"

namespace rode::lab {
namespace {

namespace nn = ::torch::nn;

nn::Linear linear(std::int64_t in, std::int64_t out, bool bias) {
  return nn::Linear(nn::LinearOptions(in, out).bias(bias));
}

struct RmsNorm : nn::Module {
  explicit RmsNorm(const ModelSpec& config)
      : eps(config.norm_eps), weight(register_parameter("weight", at::ones({config.width}))) {}

  Normed forward(const Residual& stream) const { return add_rms_norm(stream, weight, eps); }

  double eps;
  at::Tensor weight;
};

// A layer's weights in the products' type, those of one input joined; undefined where the products
// are torch's own.
struct Copies {
  at::Tensor qkv, qkv_bias, o, gate_up, down;
};

struct Attention : nn::Module {
  explicit Attention(const ModelSpec& config)
      : heads(config.heads),
        kv_heads(config.kv_heads),
        dropout(config.dropout),
        q_proj(register_module("q_proj", linear(config.width, config.width, true))),
        k_proj(register_module("k_proj", linear(config.width, kv_width(config), true))),
        v_proj(register_module("v_proj", linear(config.width, kv_width(config), true))),
        o_proj(register_module("o_proj", linear(config.width, config.width, false))) {}

  static std::int64_t kv_width(const ModelSpec& config) {
    return config.width / config.heads * config.kv_heads;
  }

  at::Tensor forward(const at::Tensor& x, const RotaryTable& rotary, const Copies& copies) {
    const double dropped = is_training() ? dropout : 0;
    if (copies.qkv.defined()) {
      const auto [q, k, v] = fused::project_qkv(x, qkv(), copies.qkv, copies.qkv_bias,
                                                {rotary.cos(), rotary.sin(), heads, kv_heads});
      return fused::project(causal_attention(q, k, v, dropped), {o_proj->weight}, copies.o);
    }
    const at::Tensor q = rotary.rotate(split_heads(q_proj->forward(x), heads));
    const at::Tensor k = rotary.rotate(split_heads(k_proj->forward(x), kv_heads));
    const at::Tensor v = split_heads(v_proj->forward(x), kv_heads);
    return o_proj->forward(causal_attention(q, k, v, dropped));
  }

  std::vector<at::Tensor> qkv() const {
    return {q_proj->weight, k_proj->weight, v_proj->weight,
            q_proj->bias,   k_proj->bias,   v_proj->bias};
  }

  std::int64_t heads, kv_heads;
  double dropout;
  nn::Linear q_proj, k_proj, v_proj, o_proj;
};

struct Mlp : nn::Module {
  explicit Mlp(const ModelSpec& config)
      : gate_proj(register_module("gate_proj", linear(config.width, config.mlp_width, false))),
        up_proj(register_module("up_proj", linear(config.width, config.mlp_width, false))),
        down_proj(register_module("down_proj", linear(config.mlp_width, config.width, false))) {}

  at::Tensor forward(const at::Tensor& x, const Copies& copies) {
    if (copies.gate_up.defined()) {
      const at::Tensor both =
          fused::project(x, {gate_proj->weight, up_proj->weight}, copies.gate_up);
      return fused::project(fused::swiglu(both), {down_proj->weight}, copies.down);
    }
    return down_proj->forward(swiglu(gate_proj->forward(x), up_proj->forward(x)));
  }

  nn::Linear gate_proj, up_proj, down_proj;
};

struct Layer : nn::Module {
  explicit Layer(const ModelSpec& config)
      : self_attn(register_module("self_attn", std::make_shared<Attention>(config))),
        mlp(register_module("mlp", std::make_shared<Mlp>(config))),
        input_layernorm(register_module("input_layernorm", std::make_shared<RmsNorm>(config))),
        post_attention_layernorm(
            register_module("post_attention_layernorm", std::make_shared<RmsNorm>(config))) {}

  // The last sum is left to the norm that follows.
  Residual pass(const Residual& stream, const RotaryTable& rotary, const Copies& copies) {
    const Normed in = input_layernorm->forward(stream);
    const Normed mid =
        post_attention_layernorm->forward({in.sum, self_attn->forward(in.norm, rotary, copies)});
    return {mid.sum, mlp->forward(mid.norm, copies)};
  }

  at::Tensor forward(const at::Tensor& x, const RotaryTable& rotary, const Copies& copies) {
    const Residual out = pass({x, {}}, rotary, copies);
    return out.x + out.delta;
  }

  std::shared_ptr<Attention> self_attn;
  std::shared_ptr<Mlp> mlp;
  std::shared_ptr<RmsNorm> input_layernorm, post_attention_layernorm;
};

struct Body : nn::Module {
  explicit Body(const ModelSpec& config)
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
    Residual stream{embed_tokens->forward(tokens), {}};
    rotary.prepare(tokens.size(1), stream.x);
    const std::vector<Copies> copies = copy_weights();
    for (std::size_t i = 0; i < layers->size(); ++i) {
      const auto layer = layers->ptr<Layer>(i);
      if (checkpoint) {
        stream.x =
            run_block(layer, stream.x, true, is_training() && dropout > 0, rotary, copies[i]);
      } else {
        stream = layer->pass(stream, rotary, copies[i]);
      }
    }
    return norm->forward(stream).norm;
  }

  // Once per pass, all layers in one launch.
  std::vector<Copies> copy_weights() const {
    std::vector<Copies> out(layers->size());
    const at::Tensor& like = embed_tokens->weight;
    const at::ScalarType type = product_type(like);
    if (!fused::takes(like.device(), like.scalar_type(), type)) return out;
    std::vector<std::vector<at::Tensor>> groups;
    for (std::size_t i = 0; i < layers->size(); ++i) {
      const auto layer = layers->ptr<Layer>(i);
      const std::vector<at::Tensor> qkv = layer->self_attn->qkv();
      groups.emplace_back(qkv.begin(), qkv.begin() + 3);
      groups.emplace_back(qkv.begin() + 3, qkv.end());
      groups.push_back({layer->self_attn->o_proj->weight});
      groups.push_back({layer->mlp->gate_proj->weight, layer->mlp->up_proj->weight});
      groups.push_back({layer->mlp->down_proj->weight});
    }
    const std::vector<at::Tensor> made = fused::joined_copies(groups, type);
    for (std::size_t i = 0; i < out.size(); ++i) {
      const auto* const m = &made[5 * i];
      out[i] = {m[0], m[1], m[2], m[3], m[4]};
    }
    return out;
  }

  nn::Embedding embed_tokens;
  nn::ModuleList layers;
  std::shared_ptr<RmsNorm> norm;
  RotaryTable rotary;
  double dropout;
};

struct Qwen2 : nn::Module {
  explicit Qwen2(const ModelSpec& config)
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

std::unique_ptr<Model> make_qwen2(const ModelSpec& config, WeightSource& draw) {
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
