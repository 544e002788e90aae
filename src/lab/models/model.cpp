// SPDX-License-Identifier: Apache-2.0
// Makes a model of a task's [model] table.
#include "lab/models/model.h"

#include <mutex>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include "lab/base/random.h"
#include "lab/models/architectures.h"
#include "rode/error.h"

namespace rode::lab {
namespace {

// Apart from the streams that the data draw from the same seed.
constexpr std::uint64_t kWeightStream = 0x77656967687473;

// Torch's modules draw weights of their own from the global generator when they are made.
class UntouchedGlobalRandom {
 public:
  UntouchedGlobalRandom() : generator_(at::detail::getDefaultCPUGenerator()) {
    const std::scoped_lock lock(generator_.mutex());
    state_ = generator_.get_state();
  }
  ~UntouchedGlobalRandom() {
    const std::scoped_lock lock(generator_.mutex());
    generator_.set_state(state_);
  }
  UntouchedGlobalRandom(const UntouchedGlobalRandom&) = delete;
  UntouchedGlobalRandom& operator=(const UntouchedGlobalRandom&) = delete;

 private:
  at::Generator generator_;
  at::Tensor state_;
};

void require(bool holds, const std::string& message) {
  if (!holds) throw Error(ErrorKind::invalid_argument, "model", message);
}

// A task file was checked already; configurations also come from programs.
void check(const ModelSpec& c) {
  if (c.kind == "resnet50" || c.kind == "small-resnet") {
    require(c.classes > 0, c.kind + " needs classes");
    require(c.kind == "resnet50" || (c.width > 0 && c.layers >= 3),
            "small-resnet has width " + std::to_string(c.width) + " and " +
                std::to_string(c.layers) + " layers; expected a width and at least 3 layers");
    return;
  }
  require(c.kind == "gpt2" || c.kind == "qwen2",
          "kind is '" + c.kind + "'; expected gpt2, qwen2, resnet50 or small-resnet");
  require(c.layers > 0 && c.width > 0 && c.mlp_width > 0 && c.vocab_size > 0 && c.heads > 0,
          c.kind + " needs layers, width, mlp_width, vocab_size and heads");
  require(c.width % c.heads == 0, "width " + std::to_string(c.width) +
                                      " is not a multiple of the " + std::to_string(c.heads) +
                                      " heads");
  if (c.kind == "gpt2") {
    require(c.positions > 0, "gpt2 needs positions");
    return;
  }
  require(c.kv_heads > 0 && c.heads % c.kv_heads == 0, "kv_heads is " + std::to_string(c.kv_heads) +
                                                           "; expected a divisor of the " +
                                                           std::to_string(c.heads) + " heads");
  require(c.width / c.heads % 2 == 0, "heads of width " + std::to_string(c.width / c.heads) +
                                          "; rotary positions need an even width");
}

}  // namespace

WeightSource::WeightSource(std::uint64_t seed)
    : generator_(at::make_generator<at::CPUGeneratorImpl>(seed)) {}

void WeightSource::normal(const at::Tensor& weight, double deviation) {
  const at::NoGradGuard no_grad;
  at::Tensor(weight).normal_(0, deviation, generator_);
}

void WeightSource::uniform(const at::Tensor& weight, double bound) {
  const at::NoGradGuard no_grad;
  at::Tensor(weight).uniform_(-bound, bound, generator_);
}

void WeightSource::constant(const at::Tensor& weight, double value) {
  const at::NoGradGuard no_grad;
  at::Tensor(weight).fill_(value);
}

void Model::set_checkpoint_activations(bool on) {
  if (!on) return;
  throw Error(
      ErrorKind::unsupported, "model",
      config_.kind +
          " has no activation checkpointing: BatchNorm's statistics would be updated twice; set "
          "checkpoint_activations to false");
}

bool Model::is_stored_transposed(std::string_view) const { return false; }

std::unique_ptr<Model> make_model(const ModelSpec& config, std::uint64_t seed) {
  check(config);
  const UntouchedGlobalRandom untouched;
  WeightSource draw(derive_seed(seed, {kWeightStream}));
  if (config.kind == "gpt2") return make_gpt2(config, draw);
  if (config.kind == "qwen2") return make_qwen2(config, draw);
  return make_resnet(config, draw);
}

}  // namespace rode::lab
