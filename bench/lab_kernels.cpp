// SPDX-License-Identifier: Apache-2.0
// Each part of a training step of the 114M decoder by itself on the GPU: time, bytes per second,
// operations per second, one JSON line each.
//
//   bench_lab_kernels [TOKENS]     65536 of them, in sequences of 512
#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <cuda_runtime_api.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/cuda.h>

#include "adapters/torch/src/cuda_stream.h"
#include "lab/models/functions.h"
#include "lab/models/fused/kernels.h"
#include "lab/models/fused/ops.h"
#include "lab/models/fused/tensors.h"

namespace {

using namespace rode::lab;

constexpr std::int64_t kWidth = 768, kMlp = 2048, kHeads = 12, kKv = 4, kSize = 64, kLength = 512;
constexpr std::int64_t kVocabulary = 50257, kPadded = 50304;

// Median of 20 runs after 5, in milliseconds.
double time_of(const std::function<void()>& work) {
  auto* const stream = static_cast<cudaStream_t>(rode::torch::current_cuda_stream(0));
  cudaEvent_t begin = nullptr, end = nullptr;
  (void)cudaEventCreate(&begin);
  (void)cudaEventCreate(&end);
  std::vector<float> times;
  for (int i = 0; i < 25; ++i) {
    (void)cudaEventRecord(begin, stream);
    work();
    (void)cudaEventRecord(end, stream);
    (void)cudaEventSynchronize(end);
    float ms = 0;
    (void)cudaEventElapsedTime(&ms, begin, end);
    if (i >= 5) times.push_back(ms);
  }
  (void)cudaEventDestroy(begin);
  (void)cudaEventDestroy(end);
  std::sort(times.begin(), times.end());
  return static_cast<double>(times[times.size() / 2]);
}

void report(const std::string& name, double bytes, double flops,
            const std::function<void()>& work) {
  const double ms = time_of(work);
  std::printf("{\"part\": \"%s\", \"ms\": %.4f, \"TB/s\": %.2f, \"TFLOP/s\": %.0f}\n", name.c_str(),
              ms, bytes / ms * 1e-9, flops / ms * 1e-9);
}

at::Tensor half(at::IntArrayRef shape) {
  return at::randn(shape, at::TensorOptions().dtype(at::kBFloat16).device(at::kCUDA)) * 0.1;
}
at::Tensor single(at::IntArrayRef shape) {
  return at::randn(shape, at::TensorOptions().dtype(at::kFloat).device(at::kCUDA)) * 0.1;
}

void elementwise(std::int64_t n) {
  const double rows = static_cast<double>(n), row = rows * kWidth;
  {
    const at::Tensor x = single({n, kWidth}), d = half({n, kWidth}), w = single({kWidth});
    report("norm forward", 12 * row, 0,
           [&] { (void)fused::add_rms_norm(x, d, w, 1e-6, at::kBFloat16); });
    const at::Tensor lx = x.clone().requires_grad_(), ld = d.clone().requires_grad_(),
                     lw = w.clone().requires_grad_();
    const auto out = fused::add_rms_norm(lx, ld, lw, 1e-6, at::kBFloat16);
    report("norm backward", 16 * row, 0,
           [&] { (void)::torch::autograd::grad({out.sum, out.norm}, {lx, ld, lw}, {x, d}, true); });
  }
  {
    const at::Tensor x = half({n, 2 * kMlp}).requires_grad_(), g = half({n, kMlp});
    const at::Tensor plain = x.detach();
    report("swiglu forward", 6 * rows * kMlp, 0, [&] { (void)fused::swiglu(plain); });
    const at::Tensor out = fused::swiglu(x);
    report("swiglu backward", 10 * rows * kMlp, 0,
           [&] { (void)::torch::autograd::grad({out}, {x}, {g}, true); });
  }
  {
    const std::int64_t width = (kHeads + 2 * kKv) * kSize;
    const at::Tensor data = half({n, width}), grads = half({n, width});
    RotaryTable table(kSize, 1e4);
    table.prepare(kLength, data);
    report("rotary forward", 4 * rows * (kHeads + kKv) * kSize, 0, [&] {
      fused::rotary_forward(
          {data.data_ptr(), table.cos().data_ptr<float>(), table.sin().data_ptr<float>(), n,
           kLength, width, kHeads + kKv, kSize, fused::Type::bf16},
          fused::stream_of(data));
    });
    const auto part = [&](std::int64_t heads) {
      return fused::HeadGrads{grads.data_ptr(), kLength * heads * kSize, kSize, heads * kSize};
    };
    report("rotary backward", 4 * rows * static_cast<double>(width), 0, [&] {
      fused::rotary_backward(
          {part(kHeads), part(kKv), part(kKv), data.data_ptr(), table.cos().data_ptr<float>(),
           table.sin().data_ptr<float>(), n, kLength, kHeads, kKv, kSize, fused::Type::bf16},
          fused::stream_of(data));
    });
    report("bias gradient", 2 * rows * static_cast<double>(width), 0,
           [&] { (void)at::sum(data, {0}, false, at::kFloat); });
  }
  {
    const std::int64_t part = n / 4;
    const at::Tensor logits = half({part, kPadded}), losses = single({part});
    const at::Tensor targets = at::randint(kVocabulary, {part}, losses.options().dtype(at::kLong));
    for (const bool gradient : {false, true}) {
      report(gradient ? "cross entropy with gradient, a quarter" : "cross entropy, a quarter",
             (gradient ? 4.0 : 2.0) * static_cast<double>(part) * kPadded, 0, [&] {
               fused::cross_entropy(
                   {logits.data_ptr(), targets.data_ptr<std::int64_t>(), losses.data_ptr<float>(),
                    part, kVocabulary, kPadded, 1e-5F, gradient, fused::Type::bf16},
                   fused::stream_of(logits));
             });
    }
  }
  {
    std::vector<std::vector<at::Tensor>> groups;
    for (int i = 0; i < 12; ++i) {
      groups.push_back(
          {single({1280, kWidth}), single({2 * kMlp, kWidth}), single({kMlp + kWidth, kWidth})});
    }
    report("copies of the weights", 6.0 * 12 * (1280 + 3 * kMlp + kWidth) * kWidth, 0,
           [&] { (void)fused::joined_copies(groups, at::kBFloat16); });
  }
  {
    const at::Tensor tokens =
        at::randint(kVocabulary, {n}, at::TensorOptions().dtype(at::kLong).device(at::kCUDA));
    const at::Tensor table = single({kVocabulary, kWidth}), grad = single({n, kWidth});
    report("embedding forward", 8 * row, 0, [&] { (void)at::embedding(table, tokens); });
    report("embedding backward", 4 * row + 4.0 * kVocabulary * kWidth, 0,
           [&] { (void)at::embedding_dense_backward(grad, tokens, kVocabulary, -1, false); });
  }
}

void attention(std::int64_t n) {
  const std::int64_t batch = n / kLength;
  const at::Tensor qkv = half({batch, kLength, kHeads + 2 * kKv, kSize}).transpose(1, 2);
  const at::Tensor q = qkv.narrow(1, 0, kHeads).detach().requires_grad_();
  const at::Tensor k = qkv.narrow(1, kHeads, kKv).detach().requires_grad_();
  const at::Tensor v = qkv.narrow(1, kHeads + kKv, kKv).detach().requires_grad_();
  const double flops = 2.0 * static_cast<double>(n) * kLength * kWidth;  // two causal products
  const at::Tensor out = causal_attention(q, k, v, 0);
  const at::Tensor grad = half(out.sizes());
  report("attention forward", 0, flops, [&] { (void)causal_attention(q, k, v, 0); });
  report("attention backward", 0, 2.5 * flops,
         [&] { (void)::torch::autograd::grad({out}, {q, k, v}, {grad}, true); });
}

void product(const std::string& name, std::int64_t n, std::int64_t in, std::int64_t out) {
  const at::Tensor x = half({n, in}), w = half({out, in}), y = half({n, out});
  const double flops = 2.0 * static_cast<double>(n) * static_cast<double>(in * out);
  report(name + ", forward", 0, flops, [&] { (void)at::mm(x, w.t()); });
  report(name + ", input gradient", 0, flops, [&] { (void)at::mm(y, w); });
  report(name + ", weight gradient fp32", 0, flops,
         [&] { (void)fused::transposed_product(y, x, at::kFloat); });
  report(name + ", weight gradient bf16", 0, flops,
         [&] { (void)fused::transposed_product(y, x, at::kBFloat16); });
}

}  // namespace

int main(int argc, char** argv) {
  if (!::torch::cuda::is_available()) {
    std::fprintf(stderr, "bench_lab_kernels: no usable cuda device\n");
    return 77;
  }
  try {
    const std::int64_t n = argc > 1 ? std::stoll(argv[1]) : 65536;
    elementwise(n);
    attention(n);
    product("qkv", n, kWidth, 1280);
    product("o", n, kWidth, kWidth);
    product("gate and up", n, kWidth, 2 * kMlp);
    product("down", n, kMlp, kWidth);
    product("head, a quarter", n / 4, kWidth, kPadded);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_lab_kernels: %s\n", error.what());
    return 1;
  }
  return 0;
}
