// SPDX-License-Identifier: Apache-2.0
// Optimizers on their own CUDA streams, using the CUDA runtime directly.
#pragma once

#include <cstddef>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "api/support.h"

namespace rode::test {

inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

#define EXPECT_CUDA(call) EXPECT_EQ((call), cudaSuccess)

class Stream {
 public:
  Stream() { EXPECT_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }
  void wait() const { EXPECT_CUDA(cudaStreamSynchronize(stream_)); }

 private:
  cudaStream_t stream_ = nullptr;
};

// Large enough for several tiles, besides the small ones.
inline std::vector<Spec> stream_specs() {
  std::vector<Spec> all = small_model();
  all.push_back({"h.2.weight", {256, 160}});
  all.push_back({"bias", {40000}});
  return all;
}

class OnStream {
 public:
  OnStream(const Method& method, const Stream& stream, DType weights = DType::f32,
           std::vector<Spec> specs = stream_specs())
      : model_(std::move(specs), weights), stream_(stream.get()) {
    std::vector<Parameter> parameters = model_.parameters();
    for (Parameter& p : parameters) {
      values_.push_back(std::make_unique<GuardedArray>(p.value.data, p.value.bytes()));
      p.value.data = values_.back()->data();
      grads_.push_back(std::make_unique<GuardedArray>(p.grad.data, p.grad.bytes()));
      p.grad.data = grads_.back()->data();
    }
    optimizer.emplace(parameters, method, Routing{},
                      EngineOptions{.device = Device::cuda, .stream = stream_});
  }
  ~OnStream() {
    if (graph_ != nullptr) cudaGraphExecDestroy(graph_);
  }
  OnStream(const OnStream&) = delete;
  OnStream& operator=(const OnStream&) = delete;

  // Gradients of draw t; copies and steps are on different streams.
  void draw(int t, std::optional<std::size_t> bad = {}) {
    model_.draw(t);
    if (bad) model_.grad(*bad).set(0, kNaN);
    EXPECT_CUDA(cudaDeviceSynchronize());
    for (auto& grad : grads_) grad->upload();
    EXPECT_CUDA(cudaDeviceSynchronize());
  }
  void capture(cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal) {
    EXPECT_CUDA(cudaStreamBeginCapture(stream_, mode));
    optimizer->set_stream(stream_);
    optimizer->step();
    cudaGraph_t graph = nullptr;
    EXPECT_CUDA(cudaStreamEndCapture(stream_, &graph));
    EXPECT_CUDA(cudaGraphInstantiate(&graph_, graph, 0));
    EXPECT_CUDA(cudaGraphDestroy(graph));
  }
  // To fresh memory; the old keeps what it holds.
  void move_grads() {
    const std::vector<Parameter> parameters = model_.parameters();
    for (std::size_t i = 0; i < grads_.size(); ++i) {
      const ConstTensorView& grad = parameters[i].grad;
      kept_.push_back(std::move(grads_[i]));
      grads_[i] = std::make_unique<GuardedArray>(grad.data, grad.bytes());
    }
    bind();
  }
  // New gradients, as a framework binds them before every step.
  void bind() {
    const std::vector<Parameter> parameters = model_.parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      ConstTensorView grad = parameters[i].grad;
      grad.data = grads_[i]->data();
      optimizer->bind_grad(i, grad);
    }
  }
  void replay() { EXPECT_CUDA(cudaGraphLaunch(graph_, stream_)); }

  Bytes weights() {
    EXPECT_CUDA(cudaDeviceSynchronize());
    for (std::size_t i = 0; i < values_.size(); ++i) {
      values_[i]->expect_guards_intact();
      values_[i]->download(model_.value(i).view().data);
    }
    return model_.weights();
  }

  std::optional<rode::Optimizer> optimizer;

 private:
  Model model_;
  cudaStream_t stream_;
  cudaGraphExec_t graph_ = nullptr;
  std::vector<std::unique_ptr<GuardedArray>> values_, grads_, kept_;
};

inline void expect_same_outcome(OnStream& a, OnStream& b) {
  expect_same(a.weights(), b.weights());
  expect_same(state_of(*a.optimizer), state_of(*b.optimizer));
  EXPECT_EQ(a.optimizer->metadata(), b.optimizer->metadata());
}

}  // namespace rode::test
