// SPDX-License-Identifier: Apache-2.0
// Optimizers beside each other: their kernels compete for the device, and some of them wait for
// other blocks of their own launch.
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "api/cuda_support.h"
#include "api/support.h"

namespace rode {
namespace {

using test::expect_same_outcome;
using test::OnStream;
using test::Stream;

constexpr int kSteps = 60;

void repeat(OnStream& run, bool replayed) {
  for (int t = 0; t < kSteps; ++t) replayed ? run.replay() : run.optimizer->step();
}

// Two threads, two streams: each optimizer does what it does alone.
void expect_undisturbed(const Method& one, const Method& other, bool replayed) {
  const Stream first, second;
  OnStream a(one, first), b(other, second), alone_a(one, first), alone_b(other, second);
  for (OnStream* run : {&a, &b, &alone_a, &alone_b}) {
    run->draw(0);
    run->optimizer->step();
    EXPECT_CUDA(cudaDeviceSynchronize());
    if (replayed) run->capture();
  }
  std::thread beside([&] { repeat(b, replayed); });
  repeat(a, replayed);
  beside.join();
  EXPECT_CUDA(cudaDeviceSynchronize());
  for (OnStream* run : {&alone_a, &alone_b}) {
    repeat(*run, replayed);
    EXPECT_CUDA(cudaDeviceSynchronize());
  }
  expect_same_outcome(a, alone_a);
  expect_same_outcome(b, alone_b);
}

TEST(CudaStreams, TwoOptimizersOnTwoStreamsDoNotDisturbEachOther) {
  RODE_CUDA_ONLY("streams are the GPU's; run with --backend cuda");
  for (const bool replayed : {false, true}) {
    SCOPED_TRACE(replayed ? "replayed" : "stepped");
    expect_undisturbed(Method::by_name("rode"), Method::by_name("rode"), replayed);
    expect_undisturbed(Method::by_name("rode"), Method::by_name("muon-rms"), replayed);
    expect_undisturbed(Method::by_name("rode", {{"reproject", "final"}}), Method::by_name("adamw"),
                       replayed);
  }
}

}  // namespace
}  // namespace rode
