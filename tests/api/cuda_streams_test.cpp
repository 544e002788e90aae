// SPDX-License-Identifier: Apache-2.0
// Optimizers that run concurrently: their kernels compete for the device, and some of them wait for
// other blocks of their own launch.
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

using test::Spec;

constexpr int kSteps = 40;

// On an H200 the products of either fill the device: tiles of the first are held until the sum of
// their matrix is known, those of the second are reprojected after the products.
const std::vector<Spec> kHeld = {{"h.0.weight", {2048, 1536}}, {"bias", {40000}}};
const std::vector<Spec> kBehind = {{"h.0.weight", {8960, 1536}}, {"h.1.weight", {1536, 1536}}};

struct Run {
  Method method;
  std::vector<Spec> specs;
};

void repeat(OnStream& run, bool replayed) {
  for (int t = 0; t < kSteps; ++t) replayed ? run.replay() : run.optimizer->step();
}

// Two threads, two streams: each optimizer gives the same result as alone.
void expect_undisturbed(const Run& one, const Run& other, bool replayed) {
  const Stream first, second;
  OnStream a(one.method, first, DType::f32, one.specs);
  OnStream b(other.method, second, DType::f32, other.specs);
  OnStream alone_a(one.method, first, DType::f32, one.specs);
  OnStream alone_b(other.method, second, DType::f32, other.specs);
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
  RODE_CUDA_ONLY("streams need a GPU; run with --backend cuda");
  const Method rode = Method::by_name("rode"), muon = Method::by_name("muon-rms");
  for (const bool replayed : {false, true}) {
    SCOPED_TRACE(replayed ? "replayed" : "stepped");
    expect_undisturbed({rode, kHeld}, {rode, kHeld}, replayed);
    expect_undisturbed({rode, kHeld}, {rode, kBehind}, replayed);
    expect_undisturbed({rode, kBehind}, {muon, kHeld}, replayed);
  }
}

}  // namespace
}  // namespace rode
