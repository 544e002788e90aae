// SPDX-License-Identifier: Apache-2.0
// The same product in fp32 and in bf16, in turn.
#include "lab/train/bf16_speed.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <torch/csrc/autograd/grad_mode.h>

namespace rode::lab {
namespace {

constexpr std::int64_t kSide = 256;  // below a millisecond in fp32
constexpr int kRounds = 3;
// With instructions for bf16 a product takes half the time or less, without them several times as
// long: nothing between is met.
constexpr double kSlow = 2;

double seconds_of(const at::Tensor& matrix) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  at::mm(matrix, matrix);
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double bf16_over_fp32() {
  const at::NoGradGuard no_grad;
  const at::Tensor single = at::ones({kSide, kSide}, at::kFloat);
  const at::Tensor half = single.to(at::kBFloat16);
  seconds_of(single);  // the first ones make their kernels
  seconds_of(half);
  double fp32 = std::numeric_limits<double>::infinity();
  double bf16 = fp32;
  for (int round = 0; round < kRounds; ++round) {
    fp32 = std::min(fp32, seconds_of(single));
    bf16 = std::min(bf16, seconds_of(half));
  }
  return bf16 / fp32;
}

}  // namespace

std::optional<std::string> slow_bf16_warning(const TrainSpec& train) {
  const bool products = train.precision == "bf16";
  if (!products && train.parameters != "bf16") return {};
  const double ratio = bf16_over_fp32();
  if (ratio < kSlow) return {};
  const std::string key = products ? "precision" : "parameters";
  return key + " = \"bf16\" is slow on this CPU: a product in bf16 takes " +
         std::to_string(std::llround(ratio)) + " times as long as in fp32; " +
         "set precision and parameters to \"fp32\" in the task, or train on a GPU";
}

}  // namespace rode::lab
