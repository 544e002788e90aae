// SPDX-License-Identifier: Apache-2.0
// The parameters of known models, by name and shape: what state and step cost depend on.
#include "model_shapes.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <utility>

#include <fmt/format.h>

#include "core/nearest.h"
#include "support.h"

namespace rode::cli {
namespace {

using Int = std::int64_t;

class Builder {
 public:
  Builder(std::string name, Route route) : model_{std::move(name), route, {}} {}

  void add(std::string name, Shape shape) { model_.tensors.push_back({std::move(name), shape}); }
  void linear(const std::string& name, Int out, Int in, bool bias) {
    add(name + ".weight", {out, in});
    if (bias) add(name + ".bias", {out});
  }
  void norm(const std::string& name, Int width, bool bias) {
    add(name + ".weight", {width});
    if (bias) add(name + ".bias", {width});
  }
  Model take() { return std::move(model_); }

 private:
  Model model_;
};

// Decoder with grouped-query attention, SwiGLU and RMSNorm; biases on q, k and v only; the
// head is tied to the embedding, so it is not a separate parameter.
struct Qwen2 {
  Int layers, width, key_value_width, feed_forward, vocabulary;
  bool small_tensors;  // biases and norms too
};

Model qwen2(std::string name, const Qwen2& c) {
  Builder b(std::move(name), Route::language);
  b.add("model.embed_tokens.weight", {c.vocabulary, c.width});
  for (Int i = 0; i < c.layers; ++i) {
    const std::string layer = fmt::format("model.layers.{}.", i);
    b.linear(layer + "self_attn.q_proj", c.width, c.width, c.small_tensors);
    b.linear(layer + "self_attn.k_proj", c.key_value_width, c.width, c.small_tensors);
    b.linear(layer + "self_attn.v_proj", c.key_value_width, c.width, c.small_tensors);
    b.linear(layer + "self_attn.o_proj", c.width, c.width, false);
    b.linear(layer + "mlp.gate_proj", c.feed_forward, c.width, false);
    b.linear(layer + "mlp.up_proj", c.feed_forward, c.width, false);
    b.linear(layer + "mlp.down_proj", c.width, c.feed_forward, false);
    if (c.small_tensors) {
      b.norm(layer + "input_layernorm", c.width, false);
      b.norm(layer + "post_attention_layernorm", c.width, false);
    }
  }
  if (c.small_tensors) b.norm("model.norm", c.width, false);
  return b.take();
}

// The 124M model: fused q/k/v, learned positions, LayerNorm, tied head; weights stored out x in.
Model gpt2() {
  constexpr Int width = 768;
  Builder b("gpt2", Route::language);
  b.add("transformer.wte.weight", {50257, width});
  b.add("transformer.wpe.weight", {1024, width});
  for (int i = 0; i < 12; ++i) {
    const std::string block = fmt::format("transformer.h.{}.", i);
    b.norm(block + "ln_1", width, true);
    b.linear(block + "attn.c_attn", 3 * width, width, true);
    b.linear(block + "attn.c_proj", width, width, true);
    b.norm(block + "ln_2", width, true);
    b.linear(block + "mlp.c_fc", 4 * width, width, true);
    b.linear(block + "mlp.c_proj", width, 4 * width, true);
  }
  b.norm("transformer.ln_f", width, true);
  return b.take();
}

// Bottleneck network with 1000 classes, named as torchvision names it.
Model resnet50() {
  Builder b("resnet50", Route::vision);
  const auto convolution = [&b](const std::string& name, Int out, Int in, Int kernel) {
    b.add(name + ".weight", {out, in, kernel, kernel});
  };
  convolution("conv1", 64, 3, 7);
  b.norm("bn1", 64, true);
  constexpr std::array<Int, 4> blocks = {3, 4, 6, 3};
  Int in = 64;
  Int width = 64;
  for (std::size_t stage = 0; stage < blocks.size(); ++stage, width *= 2) {
    const Int out = 4 * width;
    for (Int i = 0; i < blocks[stage]; ++i) {
      const std::string block = fmt::format("layer{}.{}.", stage + 1, i);
      convolution(block + "conv1", width, in, 1);
      b.norm(block + "bn1", width, true);
      convolution(block + "conv2", width, width, 3);
      b.norm(block + "bn2", width, true);
      convolution(block + "conv3", out, width, 1);
      b.norm(block + "bn3", out, true);
      if (i == 0) {
        convolution(block + "downsample.0", out, in, 1);
        b.norm(block + "downsample.1", out, true);
      }
      in = out;
    }
  }
  b.linear("fc", 1000, in, true);
  return b.take();
}

constexpr Int kMaxExtent = Int{1} << 24;
constexpr Int kMaxElements = Int{1} << 40;
constexpr Int kMaxCount = 100000;

// One positive number of "MxNxCOUNT" from the front of `text`, and the 'x' after it; 0 where
// there is none.
Int take_number(std::string_view& text, std::string_view what, Int largest) {
  Int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc::result_out_of_range || value > largest) {
    const std::string_view digits(text.data(), static_cast<std::size_t>(end - text.data()));
    throw UsageError(fmt::format("--shapes: {} {}; expected at most {}", what, digits, largest));
  }
  if (error != std::errc() || value < 1) return 0;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  if (!text.empty()) {
    if (text.front() != 'x' || text.size() == 1) return 0;
    text.remove_prefix(1);
  }
  return value;
}

// "MxNxCOUNT,..." or an empty model where the text is not of that form.
Model matrices(std::string_view text) {
  Model model{std::string(text), Route::matrix, {}};
  Int elements = 0;
  std::size_t item = 0;
  for (std::size_t at = 0; at <= text.size(); ++item) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    std::string_view part = text.substr(at, comma - at);
    const Int m = take_number(part, "extent", kMaxExtent);
    const Int n = m == 0 ? 0 : take_number(part, "extent", kMaxExtent);
    const Int count = n == 0 ? 0 : part.empty() ? 1 : take_number(part, "count", kMaxCount);
    if (count == 0 || !part.empty()) return {};
    // One matrix by itself first: with its count the product could overflow.
    if (m * n <= kMaxElements) elements += m * n * count;
    if (m * n > kMaxElements || elements > kMaxElements) {
      throw UsageError(
          fmt::format("--shapes '{}' has more than {} elements; use fewer or smaller matrices",
                      text, kMaxElements));
    }
    for (Int k = 0; k < count; ++k) {
      model.tensors.push_back({fmt::format("matrix{}.{}.weight", item, k), {m, n}});
    }
    at = comma + 1;
  }
  return model;
}

}  // namespace

std::vector<Parameter> Model::parameters(DType dtype) const {
  std::vector<Parameter> list;
  for (const ModelTensor& tensor : tensors) {
    Parameter parameter;
    parameter.name = tensor.name;
    parameter.value.shape = tensor.shape;
    parameter.grad.shape = tensor.shape;
    parameter.value.dtype = parameter.grad.dtype = dtype;
    list.push_back(std::move(parameter));
  }
  return list;
}

Model model_by_name(std::string_view text) {
  if (text == "qwen2-114m") return qwen2("qwen2-114m", {12, 768, 256, 2048, 50257, true});
  if (text == "qwen2-1.5b") return qwen2("qwen2-1.5b", {28, 1536, 256, 8960, 50645, false});
  if (text == "gpt2") return gpt2();
  if (text == "resnet50") return resnet50();
  if (Model model = matrices(text); !model.tensors.empty()) return model;
  const std::array<std::string, 4> names = {"qwen2-114m", "gpt2", "resnet50", "qwen2-1.5b"};
  throw UsageError(fmt::format("unknown --shapes '{}' (nearest: '{}'); expected {}", text,
                               nearest(text, names), kShapesHelp));
}

}  // namespace rode::cli
