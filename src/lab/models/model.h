// SPDX-License-Identifier: Apache-2.0
// A model as the trainer sees it, made from a task's [model] table, and its weights in files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>
#include <torch/nn/module.h>

#include "lab/task/task.h"

namespace rode::lab {

// Parameters carry Hugging Face's names, those of ResNet-50 the names of torchvision and timm.
// Every weight of a projection is stored (out, in), as rode::torch takes it. Products run in
// bf16 where the caller has autocast on, and parameters may be cast as a whole.
class Model {
 public:
  virtual ~Model() = default;
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  virtual ::torch::nn::Module& module() = 0;
  virtual const ::torch::nn::Module& module() const = 0;
  // Mean cross entropy. Language: tokens and targets (batch, sequence) of int64; the targets are
  // the next tokens already. Vision: images (N, 3, H, W) and labels (N).
  virtual at::Tensor loss(const at::Tensor& input, const at::Tensor& target) = 0;
  // Vision: (N, classes). Language: (batch, sequence, vocabulary), for tests.
  virtual at::Tensor logits(const at::Tensor& input) = 0;
  // The class that reads the weights elsewhere: GPT2LMHeadModel, Qwen2ForCausalLM, resnet50.
  virtual std::string architecture() const = 0;
  // Blocks are computed again in the backward pass instead of keeping what is inside them.
  virtual void set_checkpoint_activations(bool on);
  // Whether files hold this weight as (in, out): GPT-2's projections.
  virtual bool is_stored_transposed(std::string_view name) const;

  const ModelSpec& config() const { return config_; }

 protected:
  explicit Model(ModelSpec config) : config_(std::move(config)) {}

 private:
  ModelSpec config_;
};

// Weights are drawn by the model's own rule, on the CPU, from `seed` alone: torch's global
// generator is left as it was.
std::unique_ptr<Model> make_model(const ModelSpec& config, std::uint64_t seed);

// Parameters and buffers under the names of the files, as files hold them. Views where nothing
// has to be transposed.
std::vector<std::pair<std::string, at::Tensor>> stored_tensors(const Model& model);

// A tied head is the embedding and is written once.
void save_weights(const Model& model, const std::filesystem::path& safetensors);
// Takes fp32, bf16 and fp16 of any model of the same shapes, tied heads that are written twice,
// and files of the body alone (names without "transformer." or "model."). Throws and changes
// nothing where a tensor is missing, unknown or of another shape.
void load_weights(Model& model, const std::filesystem::path& safetensors);

// What transformers (or timm) reads in addition to the weights; `positions`: the longest sequence,
// for models whose positions have no bound of their own.
nlohmann::ordered_json hugging_face_config(const ModelSpec& config, std::int64_t positions);
// config.json and model.safetensors, which from_pretrained(folder) opens.
void save_pretrained(const Model& model, const std::filesystem::path& folder,
                     std::int64_t positions = 1024);

}  // namespace rode::lab
