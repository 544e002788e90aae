// SPDX-License-Identifier: Apache-2.0
// The mean of a model's weights over steps, and the model with it in their place.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lab/models/model.h"

namespace rode::lab {

// Over parameters and floating-point buffers (statistics of normalisation), in fp32: the n-th
// weights move the mean by their difference to it over n. Enqueued only, on a GPU.
class WeightAverage {
 public:
  // Begins again, or with `count` steps whose mean is then written into tensors().
  void restart(Model& model, std::int64_t count);
  void add(Model& model);
  std::int64_t count() const { return count_; }
  // By the names of the model; empty where nothing was averaged.
  const std::vector<std::pair<std::string, at::Tensor>>& tensors() const { return means_; }

  // While it lives, the model has the averaged weights.
  class Use {
   public:
    Use(const WeightAverage& average, Model& model);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    std::vector<std::pair<at::Tensor, at::Tensor>> own_;  // with the values to go back to
  };

 private:
  std::int64_t count_ = 0;
  std::vector<std::pair<std::string, at::Tensor>> means_;
};

}  // namespace rode::lab
