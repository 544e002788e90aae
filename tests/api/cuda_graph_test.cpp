// SPDX-License-Identifier: Apache-2.0
// Steps on the caller's streams and inside the caller's graphs, by the CUDA runtime itself.
#include <atomic>
#include <chrono>
#include <cstddef>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "api/cuda_support.h"
#include "api/support.h"

namespace rode {
namespace {

using test::expect_error;
using test::expect_same;
using test::expect_same_outcome;
using test::kNaN;
using test::OnStream;
using test::Stream;

class CudaGraph : public test::EveryVariant {
 protected:
  void SetUp() override {
    RODE_CUDA_ONLY("graphs need a GPU; run with --backend cuda");
    if (GetParam().method.name() == "soap") GTEST_SKIP() << "SOAP's step is not capturable";
  }
};
INSTANTIATE_TEST_SUITE_P(Optimizers, CudaGraph, ::testing::ValuesIn(test::variants()),
                         test::variant_name);
std::vector<test::Variant> lighter() {
  const Settings int8 = {{"state_dtype", "int8"}, {"state_rounding", "stochastic"}};
  const Settings radii = {{"radius_scope", "rows"}, {"reproject", "final"}, {"radius", "adaptive"}};
  return {{"rode_four", Method::by_name("rode", {{"coefficients", "four"}})},
          {"muon_four", Method::by_name("muon", {{"coefficients", "four"}})},
          {"rode_int8", Method::by_name("rode", int8)},
          {"rode_radii", Method::by_name("rode-snr", radii)},
          {"rode_radii_int8", Method::by_name("rode", radii).with(int8)},
          {"muown_int8", Method::by_name("muown", int8)},
          {"mars_int8", Method::by_name("mars-m", int8)},
          {"adamw_int8", Method::by_name("adamw", int8)}};
}
INSTANTIATE_TEST_SUITE_P(Lighter, CudaGraph, ::testing::ValuesIn(lighter()), test::variant_name);

TEST_P(CudaGraph, ReplaysOfTheCallersCaptureAreStepsBitForBit) {
  const Stream stream;
  for (const DType weights : {DType::f32, DType::bf16}) {
    const Method method = GetParam().method.with({{"rounding", "stochastic"}});
    OnStream direct(method, stream, weights), captured(method, stream, weights);
    for (int t = 0; t < 6; ++t) {
      direct.draw(t);
      direct.optimizer->step();
    }
    captured.draw(0);
    captured.optimizer->step();
    captured.capture();
    EXPECT_EQ(captured.optimizer->steps_done(), 1) << "a capture performs nothing";
    for (int t = 1; t < 6; ++t) {
      captured.draw(t);
      captured.replay();
    }
    captured.optimizer->check();
    EXPECT_EQ(captured.optimizer->steps_done(), 6);
    expect_same_outcome(captured, direct);
    EXPECT_EQ(captured.optimizer->global_diagnostics().update_norm,
              direct.optimizer->global_diagnostics().update_norm);
  }
}

TEST_P(CudaGraph, MultiplierAndRatesOfReplaysAreTheOnesSetLast) {
  const Stream stream;
  OnStream direct(GetParam().method, stream), captured(GetParam().method, stream);
  direct.draw(0);
  direct.optimizer->step();
  direct.optimizer->step(0.25);
  direct.optimizer->step(0.25);
  direct.optimizer->set_option(0, "lr", 0.01);
  direct.optimizer->step(0.5);
  direct.optimizer->step(0.5);
  captured.draw(0);
  captured.optimizer->step();
  captured.capture();
  captured.optimizer->set_multiplier(0.25);
  captured.replay();
  captured.replay();
  captured.optimizer->set_option(0, "lr", 0.01);
  captured.optimizer->step(0.5);  // sends the option to the device
  captured.replay();
  expect_same_outcome(captured, direct);
}

TEST_P(CudaGraph, ABadGradientChangesNothingInAReplayEither) {
  const Stream stream;
  OnStream run(GetParam().method, stream), plain(GetParam().method, stream);
  run.draw(0);
  run.optimizer->step();
  run.capture();
  const auto weights = run.weights();
  const auto state = test::state_of(*run.optimizer);
  for (const std::size_t bad : {std::size_t{0}, test::stream_specs().size() - 1}) {
    run.draw(1, bad);
    run.replay();
    expect_same(run.weights(), weights);
    expect_same(test::state_of(*run.optimizer), state);
    expect_error([&] { run.optimizer->check(); }, ErrorKind::non_finite,
                 {"'" + test::stream_specs()[bad].name + "'", "NaN or Inf", "nothing was changed"});
  }
  run.draw(1);
  run.replay();
  EXPECT_NO_THROW(run.optimizer->check());
  EXPECT_EQ(run.optimizer->refused_steps(), 2);
  for (int t = 0; t < 2; ++t) {
    plain.draw(t);
    plain.optimizer->step();
  }
  expect_same_outcome(run, plain);
}

TEST_P(CudaGraph, NothingIsAllocatedOnTheDeviceAfterTheFirstStep) {
  const Stream stream;
  OnStream run(GetParam().method, stream);
  run.draw(0);
  const auto free_bytes = [] {
    EXPECT_CUDA(cudaDeviceSynchronize());
    std::size_t free = 0, total = 0;
    EXPECT_CUDA(cudaMemGetInfo(&free, &total));
    return free;
  };
  run.optimizer->step();
  const std::size_t after_first = free_bytes();
  for (int t = 0; t < 20; ++t) {
    run.optimizer->step(0.5);
    run.optimizer->check();
  }
  EXPECT_EQ(free_bytes(), after_first);
}

TEST_P(CudaGraph, StepsMoveToAnotherStreamAfterThoseEnqueuedBefore) {
  const Stream first, second;
  OnStream still(GetParam().method, first), moving(GetParam().method, first);
  for (OnStream* run : {&still, &moving}) run->draw(0);
  for (int t = 0; t < 6; ++t) {
    still.optimizer->step();
    moving.optimizer->set_stream(t % 2 == 0 ? second.get() : first.get());
    moving.optimizer->step();
  }
  moving.optimizer->set_stream(nullptr);
  moving.optimizer->step();
  still.optimizer->step();
  expect_same_outcome(moving, still);
}

// A stream that waits until the host releases it, or for ten seconds.
class Gate {
 public:
  explicit Gate(const Stream& stream) {
    EXPECT_CUDA(cudaLaunchHostFunc(stream.get(), &Gate::wait, this));
  }
  void open() { open_ = true; }
  bool timed_out() const { return timed_out_; }

 private:
  static void CUDART_CB wait(void* data) {
    Gate& gate = *static_cast<Gate*>(data);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!gate.open_ && !gate.timed_out_) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      gate.timed_out_ = std::chrono::steady_clock::now() > end;
    }
  }
  std::atomic<bool> open_{false}, timed_out_{false};
};

TEST_P(CudaGraph, AStepIsEnqueuedAndNotWaitedFor) {
  const Stream stream;
  OnStream run(GetParam().method, stream);
  run.draw(0);
  for (int t = 0; t < 2; ++t) run.optimizer->step();
  stream.wait();
  Gate gate(stream);
  for (int t = 0; t < 3; ++t) {
    run.bind();
    run.optimizer->step(0.5);
  }
  EXPECT_EQ(cudaStreamQuery(stream.get()), cudaErrorNotReady);
  gate.open();
  stream.wait();
  EXPECT_FALSE(gate.timed_out()) << "step() waited for the stream";
  EXPECT_EQ(run.optimizer->steps_done(), 5);
}

TEST_P(CudaGraph, ACaptureBeforeTheFirstStepAndAMultiplierInsideOneAreRefused) {
  const Stream stream;
  OnStream run(GetParam().method, stream);
  run.draw(0);
  const auto in_capture = [&](auto&& call) {
    EXPECT_CUDA(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal));
    expect_error(call, ErrorKind::invalid_argument, {"captured"});
    cudaGraph_t graph = nullptr;
    EXPECT_CUDA(cudaStreamEndCapture(stream.get(), &graph));
    if (graph != nullptr) {
      EXPECT_CUDA(cudaGraphDestroy(graph));
    }
  };
  in_capture([&] { run.optimizer->step(); });
  run.optimizer->step();
  in_capture([&] { run.optimizer->set_multiplier(0.5); });
  run.optimizer->step();
  EXPECT_NO_THROW(run.optimizer->check());
  EXPECT_EQ(run.optimizer->steps_done(), 2);
}

constexpr const char* kTables[] = {"rode", "adamw", "adafactor"};  // each has its own tables

TEST(CudaGraphBinding, OptionsOfReplaysAreThoseOfTheCaptureOrSentSince) {
  RODE_CUDA_ONLY("graphs need a GPU; run with --backend cuda");
  const Stream stream;
  for (const char* name : kTables) {
    SCOPED_TRACE(name);
    OnStream direct(Method::by_name(name), stream), captured(Method::by_name(name), stream);
    direct.draw(0);
    direct.optimizer->step();
    for (const double lr : {0.02, 0.03, 0.04}) {
      direct.optimizer->set_option(0, "lr", lr);
      for (int t = 0; t < 2; ++t) direct.optimizer->step();
    }
    captured.draw(0);
    captured.optimizer->step();
    captured.optimizer->set_option(0, "lr", 0.02);
    captured.capture();
    for (int t = 0; t < 2; ++t) captured.replay();
    captured.optimizer->set_option(0, "lr", 0.03);
    captured.optimizer->send_options();
    for (int t = 0; t < 2; ++t) captured.replay();
    captured.optimizer->set_option(0, "lr", 0.04);
    captured.optimizer->step();
    captured.replay();
    expect_same_outcome(captured, direct);
  }
}

// As a framework does it: gradients are allocated again in the capture, and by every step outside.
TEST(CudaGraphBinding, GradientsOfReplaysAreThoseOfTheCapture) {
  RODE_CUDA_ONLY("graphs need a GPU; run with --backend cuda");
  const Stream stream;
  for (const char* name : kTables) {
    SCOPED_TRACE(name);
    OnStream direct(Method::by_name(name), stream), captured(Method::by_name(name), stream);
    captured.draw(7);
    captured.optimizer->step();
    captured.move_grads();
    captured.draw(1);
    captured.capture();
    captured.replay();
    captured.move_grads();
    captured.draw(2);
    captured.optimizer->step();
    captured.replay();  // of draw 1 again
    for (const int t : {7, 1, 2, 1}) {
      direct.draw(t);
      direct.optimizer->step();
    }
    expect_same_outcome(captured, direct);
  }
}

TEST(CudaGraphBinding, TheCapturedStreamMayBeAnotherThanThatOfTheStepsBefore) {
  RODE_CUDA_ONLY("graphs need a GPU; run with --backend cuda");
  const Stream first, second;
  for (const char* name : kTables) {
    SCOPED_TRACE(name);
    OnStream direct(Method::by_name(name), second), captured(Method::by_name(name), second);
    for (OnStream* run : {&direct, &captured}) run->draw(0);
    captured.optimizer->set_stream(first.get());
    captured.optimizer->step();
    captured.capture(cudaStreamCaptureModeGlobal);  // of the second, as PyTorch does it
    for (int t = 0; t < 2; ++t) captured.replay();
    captured.optimizer->set_stream(first.get());
    captured.optimizer->step();
    for (int t = 0; t < 4; ++t) direct.optimizer->step();
    expect_same_outcome(captured, direct);
  }
}

TEST(CudaGraphBinding, AStreamThatIsBeingCapturedIsNotLeft) {
  RODE_CUDA_ONLY("graphs need a GPU; run with --backend cuda");
  const Stream first, second;
  OnStream run(Method::by_name("rode"), first);
  run.draw(0);
  run.optimizer->step();
  EXPECT_CUDA(cudaStreamBeginCapture(first.get(), cudaStreamCaptureModeGlobal));
  expect_error([&] { run.optimizer->set_stream(second.get()); }, ErrorKind::invalid_argument,
               {"captured"});
  cudaGraph_t graph = nullptr;
  EXPECT_CUDA(cudaStreamEndCapture(first.get(), &graph));
  EXPECT_CUDA(cudaGraphDestroy(graph));
  run.optimizer->set_stream(second.get());
}

}  // namespace
}  // namespace rode
