// SPDX-License-Identifier: Apache-2.0
// Sums of gradients over the ranks of a run, on their way while the backward pass still works.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "rode/torch/ranks.h"

namespace rode::lab {

// The gradients of a model in buffers of about 25 MB, the last parameters first, as the backward
// pass finds them. A buffer whose gradients are all there is sent; the order of the buffers is the
// same on every rank. They are fp32 also for bf16 parameters: rounded once, after the sum.
class GradientBuckets {
 public:
  // Large enough that the time of a message is that of its bytes, small enough that the first one
  // leaves early.
  static constexpr std::int64_t kBytes = 25 * 1024 * 1024;

  // `parameters`: in the order of the model. Hangs hooks on them while it lives.
  GradientBuckets(std::vector<at::Tensor> parameters, rode::torch::ProcessGroup group,
                  std::int64_t bucket_bytes = kBytes);
  GradientBuckets(const GradientBuckets&) = delete;
  GradientBuckets& operator=(const GradientBuckets&) = delete;
  ~GradientBuckets();

  // The next backward pass is the last of the batch: its gradients are sent as they come.
  void begin();
  // Sends what is left, waits, and makes every gradient the sum over the ranks. A parameter without
  // a gradient keeps none.
  void finish();
  // In place of both, for gradients that were summed elsewhere: fp32, by parameter; undefined ones
  // stay so.
  void sum(std::vector<at::Tensor>& gradients);

  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  std::size_t buckets() const { return buckets_.size(); }

 private:
  struct Hook;
  struct Bucket {
    at::Tensor buffer;
    std::size_t members = 0;
    std::size_t waiting = 0;  // members that are not there yet
  };
  struct Place {
    std::size_t bucket = 0;
    std::int64_t first = 0;
  };

  at::Tensor slice(std::size_t parameter) const;
  void restart();
  void put(std::size_t parameter, const at::Tensor& gradient);

  std::vector<at::Tensor> parameters_;
  rode::torch::ProcessGroup group_;
  std::vector<Bucket> buckets_;
  std::vector<Place> places_;  // by parameter
  std::vector<bool> there_;    // by parameter
  std::size_t sent_ = 0;       // buckets
  bool open_ = false;          // between begin() and finish()
};

}  // namespace rode::lab
