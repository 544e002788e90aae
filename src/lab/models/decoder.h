// SPDX-License-Identifier: Apache-2.0
// What the decoders share: blocks in a row, and a head that may be the embedding.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <torch/nn/modules/linear.h>

#include "lab/models/functions.h"
#include "lab/models/model.h"
#include "lab/models/recompute.h"
#include "rode/error.h"

namespace rode::lab {

// Runs one block, again in the backward pass where `checkpoint`.
template <class BlockModule, class... Constants>
at::Tensor run_block(const std::shared_ptr<BlockModule>& block, const at::Tensor& x,
                     bool checkpoint, bool random, const Constants&... constants) {
  if (!checkpoint) return block->forward(x, constants...);
  // All by value: the second run comes when this pass is over, and the model may be gone.
  const auto again = [block, constants...](const at::Tensor& input) {
    return block->forward(input, constants...);
  };
  return recompute(again, x, block->parameters(), random);
}

// `Network`: a module with `at::Tensor hidden(tokens)` and `const at::Tensor& head()`.
template <class Network>
class Decoder : public Model {
 public:
  Decoder(const ModelSpec& config, std::shared_ptr<Network> network, std::string architecture)
      : Model(config), network_(std::move(network)), architecture_(std::move(architecture)) {}

  ::torch::nn::Module& module() override { return *network_; }
  const ::torch::nn::Module& module() const override { return *network_; }
  std::string architecture() const override { return architecture_; }
  void set_checkpoint_activations(bool on) override { network_->checkpoint = on; }

  at::Tensor loss(const at::Tensor& input, const at::Tensor& target) override {
    check(input);
    return linear_cross_entropy(network_->hidden(input), network_->head(), target);
  }
  at::Tensor logits(const at::Tensor& input) override {
    check(input);
    return at::linear(network_->hidden(input), network_->head());
  }
  bool is_stored_transposed(std::string_view name) const override {
    return Network::is_stored_transposed(name);
  }

 private:
  void check(const at::Tensor& tokens) const {
    if (tokens.dim() != 2 || tokens.scalar_type() != at::kLong) {
      throw Error(ErrorKind::shape, "model",
                  "tokens of rank " + std::to_string(tokens.dim()) +
                      "; expected (batch, sequence) of int64");
    }
    const std::int64_t positions = config().positions;
    if (positions > 0 && tokens.size(1) > positions) {
      throw Error(ErrorKind::shape, "model",
                  "a sequence of " + std::to_string(tokens.size(1)) + "; the model has " +
                      std::to_string(positions) + " positions");
    }
  }

  std::shared_ptr<Network> network_;
  std::string architecture_;
};

}  // namespace rode::lab
