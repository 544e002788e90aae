// SPDX-License-Identifier: Apache-2.0
// The config.json that transformers reads; timm's for ResNet-50.
#include <nlohmann/json.hpp>

#include "lab/models/model.h"

namespace rode::lab {
namespace {

nlohmann::ordered_json gpt2_json(const ModelSpec& c) {
  return {{"architectures", {"GPT2LMHeadModel"}},
          {"model_type", "gpt2"},
          {"vocab_size", c.vocab_size},
          {"n_positions", c.positions},
          {"n_embd", c.width},
          {"n_layer", c.layers},
          {"n_head", c.heads},
          {"n_inner", c.mlp_width},
          {"activation_function", "gelu_new"},
          {"layer_norm_epsilon", c.norm_eps},
          {"initializer_range", c.init_deviation},
          {"resid_pdrop", c.dropout},
          {"embd_pdrop", c.dropout},
          {"attn_pdrop", c.dropout}};
}

nlohmann::ordered_json qwen2_json(const ModelSpec& c, std::int64_t positions) {
  return {{"architectures", {"Qwen2ForCausalLM"}},
          {"model_type", "qwen2"},
          {"vocab_size", c.vocab_size},
          {"max_position_embeddings", positions},
          {"hidden_size", c.width},
          {"num_hidden_layers", c.layers},
          {"num_attention_heads", c.heads},
          {"num_key_value_heads", c.kv_heads},
          {"intermediate_size", c.mlp_width},
          {"hidden_act", "silu"},
          {"rms_norm_eps", c.norm_eps},
          {"initializer_range", c.init_deviation},
          {"attention_dropout", c.dropout},
          {"use_sliding_window", false},
          // The first is version 4's, the second version 5's.
          {"rope_theta", c.rope_base},
          {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", c.rope_base}}}};
}

}  // namespace

nlohmann::ordered_json hugging_face_config(const ModelSpec& config, std::int64_t positions) {
  if (config.kind == "gpt2" || config.kind == "qwen2") {
    auto json = config.kind == "gpt2" ? gpt2_json(config) : qwen2_json(config, positions);
    json["tie_word_embeddings"] = config.tied;
    // The defaults are tokens of the published vocabularies, which need not be this one's.
    json["bos_token_id"] = nullptr;
    json["eos_token_id"] = nullptr;
    return json;
  }
  nlohmann::ordered_json json = {{"architecture", config.kind}, {"num_classes", config.classes}};
  if (config.kind == "small-resnet") {
    json["width"] = config.width;
    json["layers"] = config.layers;
  }
  return json;
}

}  // namespace rode::lab
