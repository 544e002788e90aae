// SPDX-License-Identifier: Apache-2.0
// SOAP's element-wise parts; its products are in sgemm.cu.
//
// Recurrence: rode/optim/soap.h. Bytes per element in fp32: moments 24 (g, m, v in; m, v, N
// out), write 12, permute 8, widen 6. Blocks of 256 threads over the elements, one element
// per thread at a time; a write takes slices, for each leaves one pair of partial sums.
#include <algorithm>

#include "backend/cuda/device/check.h"
#include "backend/cuda/device/reduce.cuh"
#include "backend/cuda/device/stored.cuh"
#include "backend/cuda/soap/soap_steps.h"
#include "backend/cuda/tables/control.h"
#include "rules/soap_rule.h"

namespace rode::cuda {
namespace {

constexpr int kWidth = 256;                  // threads of a block
constexpr std::int64_t kMostBlocks = 65536;  // of a loop over elements
constexpr int kSide = 16;                    // of a block of the Gram matrix

__device__ std::int64_t first_index() {
  return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ std::int64_t index_step() { return static_cast<std::int64_t>(gridDim.x) * blockDim.x; }

__global__ void heads(SoapHeadArgs args) {
  const std::int64_t i = first_index();
  if (i < args.count) args.heads[i] = {*args.steps[i], args.results[i].live};
}

__global__ void widen(const std::uint16_t* __restrict__ from, float* __restrict__ to,
                      std::int64_t count) {
  for (std::int64_t i = first_index(); i < count; i += index_step()) {
    to[i] = rules::bf16_to_float(from[i]);
  }
}

// Whoever has the entry of the upper triangle alone reads it, then writes both.
__global__ void gram(SoapGramArgs args) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.y) * kSide + threadIdx.y;
  const std::int64_t j = static_cast<std::int64_t>(blockIdx.x) * kSide + threadIdx.x;
  if (j >= args.n || i > j) return;
  double sum = 0;
  for (int part = 0; part < args.part_count; ++part) {
    sum += static_cast<double>(args.parts[part * args.part_stride + i * args.n + j]);
  }
  const float value =
      rules::soap_average(args.coefficients, args.gram[i * args.n + j], static_cast<float>(sum));
  args.fresh[i * args.n + j] = value;
  args.fresh[j * args.n + i] = value;
}

__global__ void moments(SoapMomentArgs args) {
  const rules::SoapCoefficients c = args.coefficients;
  for (std::int64_t i = first_index(); i < args.count; i += index_step()) {
    float m = args.m[i], v = args.v[i];
    args.direction[i] =
        rules::soap_element(c.beta1, c.rest1, c.beta2, c.rest2, c.eps, args.g[i], m, v);
    args.m[i] = m;
    args.v[i] = v;
  }
}

__global__ void permute(SoapPermuteArgs args) {
  const std::int64_t slab = args.extent * args.inner;
  for (std::int64_t i = first_index(); i < args.count; i += index_step()) {
    const std::int64_t outer = i / slab, within = i % slab;
    const std::int64_t j = within / args.inner, t = within % args.inner;
    args.y[i] = args.x[outer * slab + args.order[j] * args.inner + t];
  }
}

__global__ void __launch_bounds__(kWidth) write(SoapWriteArgs args) {
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * kSlice;
  const std::int64_t end = min(args.count, begin + kSlice);
  const std::uint64_t sequence = rules::step_sequence(args.weight.sequence, args.step);
  Moved moved;
  for (std::int64_t i = begin + threadIdx.x; i < end; i += kWidth) {
    const std::int64_t at[1] = {i};
    Bits<1> bits[1];
    float w[1];
    load(args.weight, Runs<1, 1>{0, 1}, at, bits);
    decode(bits[0], args.weight.bf16 != 0, w);
    float fresh[1] = {w[0]};
    if (args.direction != nullptr) {
      fresh[0] = args.on_w * w[0] + args.on_n * args.direction[i];
      store_weights(args.weight, sequence, args.offset + i, i, fresh);
    }
    moved.add(w, fresh);
  }
  double sums[2] = {moved.ww, moved.dd};
  block_sums<kWidth>(sums);
  if (threadIdx.x != 0) return;
  args.sums[2 * static_cast<std::int64_t>(blockIdx.x)] = sums[0];
  args.sums[2 * static_cast<std::int64_t>(blockIdx.x) + 1] = sums[1];
}

__global__ void __launch_bounds__(kWidth) report(SoapReportArgs args) {
  double sums[2] = {};
  if (args.failed == 0) {
    for (std::int64_t i = threadIdx.x; i < args.slices; i += kWidth) {
      sums[0] += args.sums[2 * i];
      sums[1] += args.sums[2 * i + 1];
    }
  }
  block_sums<kWidth>(sums);
  if (threadIdx.x != 0) return;
  args.result->ww = sums[0];
  args.result->dd = sums[1];
  args.result->failed = args.failed;
  note_end(*args.control, args.parameter, sums[0], sums[1]);
  if (args.failed == 0) ++*args.step;
}

unsigned blocks_for(std::int64_t count) {
  return static_cast<unsigned>(std::min(kMostBlocks, (count + kWidth - 1) / kWidth));
}

}  // namespace

void launch_soap_heads(const SoapHeadArgs& args, cudaStream_t stream) {
  heads<<<blocks_for(args.count), kWidth, 0, stream>>>(args);
  RODE_CUDA_CHECK_LAUNCH(stream, "soap heads");
}

void launch_soap_widen(const std::uint16_t* from, float* to, std::int64_t count,
                       cudaStream_t stream) {
  widen<<<blocks_for(count), kWidth, 0, stream>>>(from, to, count);
  RODE_CUDA_CHECK_LAUNCH(stream, "soap widen");
}

void launch_soap_gram(const SoapGramArgs& args, cudaStream_t stream) {
  const auto side = static_cast<unsigned>((args.n + kSide - 1) / kSide);
  gram<<<dim3(side, side), dim3(kSide, kSide), 0, stream>>>(args);
  RODE_CUDA_CHECK_LAUNCH(stream, "soap gram");
}

void launch_soap_moments(const SoapMomentArgs& args, cudaStream_t stream) {
  moments<<<blocks_for(args.count), kWidth, 0, stream>>>(args);
  RODE_CUDA_CHECK_LAUNCH(stream, "soap moments");
}

void launch_soap_permute(const SoapPermuteArgs& args, cudaStream_t stream) {
  permute<<<blocks_for(args.count), kWidth, 0, stream>>>(args);
  RODE_CUDA_CHECK_LAUNCH(stream, "soap permute");
}

void launch_soap_write(const SoapWriteArgs& args, cudaStream_t stream) {
  write<<<static_cast<unsigned>(slice_count(args.count)), kWidth, 0, stream>>>(args);
  RODE_CUDA_CHECK_LAUNCH(stream, "soap write");
}

void launch_soap_report(const SoapReportArgs& args, cudaStream_t stream) {
  report<<<1, kWidth, 0, stream>>>(args);
  RODE_CUDA_CHECK_LAUNCH(stream, "soap report");
}

}  // namespace rode::cuda
