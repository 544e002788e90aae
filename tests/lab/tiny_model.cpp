// SPDX-License-Identifier: Apache-2.0
// Small models behind the lab's interface: a decoder for language, two convolutions for images.
#include <cmath>

#include <torch/torch.h>

#include "lab/models/model.h"
#include "rode/safetensors.h"

namespace rode::lab {
namespace {

namespace nn = ::torch::nn;
using at::Tensor;

nn::Linear linear(std::int64_t in, std::int64_t out) {
  return nn::Linear(nn::LinearOptions(in, out).bias(false));
}

struct LayerImpl : nn::Module {
  LayerImpl(const ModelSpec& c) : heads(c.heads) {
    q = register_module("q_proj", linear(c.width, c.width));
    k = register_module("k_proj", linear(c.width, c.width));
    v = register_module("v_proj", linear(c.width, c.width));
    o = register_module("o_proj", linear(c.width, c.width));
    gate = register_module("gate_proj", linear(c.width, c.mlp_width));
    up = register_module("up_proj", linear(c.width, c.mlp_width));
    down = register_module("down_proj", linear(c.mlp_width, c.width));
    norm1 = register_module("input_layernorm", nn::LayerNorm(nn::LayerNormOptions({c.width})));
    norm2 = register_module("post_layernorm", nn::LayerNorm(nn::LayerNormOptions({c.width})));
  }
  Tensor forward(const Tensor& x) {
    const auto split = [&](const Tensor& t) {
      return t.view({t.size(0), t.size(1), heads, -1}).transpose(1, 2);
    };
    const Tensor h = norm1(x);
    const Tensor mixed =
        at::scaled_dot_product_attention(split(q(h)), split(k(h)), split(v(h)), {}, 0.0, true);
    const Tensor y = x + o(mixed.transpose(1, 2).reshape(x.sizes()));
    const Tensor g = norm2(y);
    return y + down(at::silu(gate(g)) * up(g));
  }
  std::int64_t heads;
  nn::Linear q{nullptr}, k{nullptr}, v{nullptr}, o{nullptr}, gate{nullptr}, up{nullptr},
      down{nullptr};
  nn::LayerNorm norm1{nullptr}, norm2{nullptr};
};
TORCH_MODULE(Layer);

struct DecoderImpl : nn::Module {
  DecoderImpl(const ModelSpec& c) {
    embed = register_module("embed_tokens", nn::Embedding(c.vocab_size, c.width));
    place = register_module("embed_positions", nn::Embedding(1024, c.width));
    layers = register_module("layers", nn::ModuleList());
    for (std::int64_t i = 0; i < c.layers; ++i) layers->push_back(Layer(c));
    norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({c.width})));
    drop = register_module("dropout", nn::Dropout(c.dropout));
  }
  Tensor forward(const Tensor& tokens) {
    Tensor x = drop(embed(tokens) + place(at::arange(tokens.size(1))));
    for (const auto& layer : *layers) x = layer->as<Layer>()->forward(x);
    return at::linear(norm(x), embed->weight);
  }
  nn::Embedding embed{nullptr}, place{nullptr};
  nn::ModuleList layers{nullptr};
  nn::LayerNorm norm{nullptr};
  nn::Dropout drop{nullptr};
};

struct ImagesImpl : nn::Module {
  ImagesImpl(const ModelSpec& c) {
    conv1 = register_module("conv1", nn::Conv2d(nn::Conv2dOptions(3, 8, 5).stride(4)));
    norm = register_module("bn1", nn::BatchNorm2d(8));
    conv2 = register_module("conv2", nn::Conv2d(nn::Conv2dOptions(8, 16, 3).stride(2)));
    fc = register_module("fc", nn::Linear(16, c.classes));
  }
  Tensor forward(const Tensor& images) {
    return fc(conv2(at::relu(norm(conv1(images)))).relu().mean({2, 3}));
  }
  nn::Conv2d conv1{nullptr}, conv2{nullptr};
  nn::BatchNorm2d norm{nullptr};
  nn::Linear fc{nullptr};
};

template <class Impl>
class Tiny : public Model {
 public:
  explicit Tiny(const ModelConfig& config) : Model(config), impl_(std::make_shared<Impl>(config)) {}
  nn::Module& module() override { return *impl_; }
  const nn::Module& module() const override { return *impl_; }
  Tensor loss(const Tensor& input, const Tensor& target) override {
    return at::cross_entropy_loss(logits(input).flatten(0, -2), target.flatten());
  }
  Tensor logits(const Tensor& input) override { return impl_->forward(input); }
  std::string architecture() const override { return "tiny"; }

 private:
  std::shared_ptr<Impl> impl_;
};

}  // namespace

void Model::set_checkpoint_activations(bool) {}
bool Model::is_stored_transposed(std::string_view) const { return false; }

std::unique_ptr<Model> make_model(const ModelConfig& config, std::uint64_t seed) {
  std::unique_ptr<Model> model;
  if (config.vocab_size > 0) {
    model = std::make_unique<Tiny<DecoderImpl>>(config);
  } else {
    model = std::make_unique<Tiny<ImagesImpl>>(config);
  }
  const ::torch::NoGradGuard no_grad;
  at::Generator draw = at::detail::createCPUGenerator(seed);
  for (auto& item : model->module().named_parameters()) {
    Tensor weight = item.value();
    if (weight.dim() < 2) continue;
    const auto fan_in = static_cast<double>(weight.numel() / weight.size(0));
    weight.normal_(0, config.vocab_size > 0 ? config.init_deviation : std::sqrt(2 / fan_in), draw);
  }
  return model;
}

void save_weights(const Model& model, const std::filesystem::path& safetensors) {
  std::vector<TensorEntry> entries;
  std::vector<Tensor> held;
  for (const auto& item : model.module().named_parameters()) {
    const Tensor& t = held.emplace_back(item.value().detach().cpu().to(at::kFloat).contiguous());
    const Shape shape(std::span<const std::int64_t>(t.sizes().data(), t.sizes().size()));
    entries.push_back({item.key(), {t.data_ptr(), shape, DType::f32}});
  }
  write_safetensors(safetensors, entries);
}

void save_pretrained(const Model& model, const std::filesystem::path& folder, std::int64_t) {
  save_weights(model, folder / "model.safetensors");
}

}  // namespace rode::lab
