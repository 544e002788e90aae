// SPDX-License-Identifier: Apache-2.0
// RMSNorm over rows, with the residual sum before it: forward and backward.
//
//   forward   s = x + d,  r = (mean(s^2) + eps)^-1/2,  y = s r w
//   backward  g = dy w,  n = s r,  ds' = ds + r (g - n mean(g n)),  dw = sum over rows of dy n
//
// A block has a row at a time, a thread the same columns of every row: the weight and its gradient
// stay in registers. Bytes per element, stream fp32 and branch bf16: forward 12 (x, d in; s, y
// out), backward 16 (dy, ds, s in; ds', dd out). The gradient of the weight is summed in two
// stages: by each block over its rows, then over the blocks in order.
#include "lab/models/fused/elements.cuh"
#include "lab/models/fused/kernels.h"
#include "lab/models/fused/launch.h"
#include "lab/models/fused/math.h"

namespace rode::lab::fused {
namespace {

constexpr int kMaxWarps = 32;

// The columns of a thread: kItems runs of kWidth.
template <int kWidth>
__device__ std::int64_t column_of(int item) {
  return (static_cast<std::int64_t>(item) * blockDim.x + threadIdx.x) * kWidth;
}

template <class Stream, class Branch, int kWidth, int kItems>
__global__ void __launch_bounds__(kMaxNormWidth / (kWidth * kItems))
    forward_kernel(RmsNormForward a) {
  __shared__ float parts[kMaxWarps];
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * a.width;
  float x[kItems][kWidth];
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const std::int64_t column = column_of<kWidth>(i);
    if (column >= a.width) continue;
    load(static_cast<const Stream*>(a.x) + at + column, x[i]);
    if (a.delta != nullptr) {
      float d[kWidth];
      load(static_cast<const Branch*>(a.delta) + at + column, d);
      auto* sum = static_cast<Stream*>(a.sum) + at + column;
#pragma unroll
      for (int j = 0; j < kWidth; ++j) x[i][j] = rounded(x[i][j] + d[j], sum);
      store(sum, x[i]);
    }
#pragma unroll
    for (int j = 0; j < kWidth; ++j) squares += x[i][j] * x[i][j];
  }
  squares = block_sum(squares, parts);
  const float r = rms_scale(squares, static_cast<float>(a.width), a.eps);
  if (threadIdx.x == 0) a.scale[blockIdx.x] = r;
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const std::int64_t column = column_of<kWidth>(i);
    if (column >= a.width) continue;
    float w[kWidth];
    load(static_cast<const Stream*>(a.weight) + column, w);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) x[i][j] *= r * w[j];
    store(static_cast<Branch*>(a.y) + at + column, x[i]);
  }
}

template <class Stream, class Branch, int kWidth, int kItems>
__global__ void __launch_bounds__(kMaxNormWidth / (kWidth * kItems))
    backward_kernel(RmsNormBackward a) {
  __shared__ float parts[kMaxWarps];
  float w[kItems][kWidth], dw[kItems][kWidth];
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const std::int64_t column = column_of<kWidth>(i);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) dw[i][j] = w[i][j] = 0;
    if (column < a.width) load(static_cast<const Stream*>(a.weight) + column, w[i]);
  }
  const float mean_of = 1.0F / static_cast<float>(a.width);
  for (std::int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const std::int64_t at = row * a.width;
    const float r = a.scale[row];
    float g[kItems][kWidth], n[kItems][kWidth], ds[kItems][kWidth];
    float dot = 0;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const std::int64_t column = column_of<kWidth>(i);
      if (column >= a.width) continue;
      load(static_cast<const Branch*>(a.dy) + at + column, g[i]);
      load(static_cast<const Stream*>(a.sum) + at + column, n[i]);
      if (a.dsum != nullptr) {
        load(static_cast<const Stream*>(a.dsum) + at + column, ds[i]);
      } else {
#pragma unroll
        for (int j = 0; j < kWidth; ++j) ds[i][j] = 0;
      }
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        n[i][j] *= r;
        dw[i][j] += g[i][j] * n[i][j];
        g[i][j] *= w[i][j];
        dot += g[i][j] * n[i][j];
      }
    }
    const float mean = block_sum(dot, parts) * mean_of;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const std::int64_t column = column_of<kWidth>(i);
      if (column >= a.width) continue;
#pragma unroll
      for (int j = 0; j < kWidth; ++j) ds[i][j] += rms_grad(g[i][j], n[i][j], mean, r);
      store(static_cast<Stream*>(a.dx) + at + column, ds[i]);
      if (a.ddelta != nullptr) store(static_cast<Branch*>(a.ddelta) + at + column, ds[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const std::int64_t column = column_of<kWidth>(i);
    if (column >= a.width) continue;
    store(a.partial + blockIdx.x * a.width + column, dw[i]);
  }
}

// A warp's lanes have 32 columns, its 32 warps every 32nd row; then the warps' sums in order.
template <class Stream>
__global__ void finish_kernel(const float* partial, std::int64_t rows, std::int64_t width,
                              Stream* dweight) {
  __shared__ float sums[32][33];
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * 32 + lane;
  float sum = 0;
  if (column < width) {
    for (std::int64_t row = warp; row < rows; row += 32) sum += partial[row * width + column];
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || column >= width) return;
  for (int other = 1; other < 32; ++other) sum += sums[other][lane];
  const float out[1] = {sum};
  store(dweight + column, out);
}

template <class Stream, class Branch, int kWidth, int kItems>
void forward_shape(const RmsNormForward& a, cudaStream_t stream) {
  const unsigned threads = warps_for(ceil_div(a.width, kWidth * kItems), 1024);
  forward_kernel<Stream, Branch, kWidth, kItems><<<blocks(a.rows), threads, 0, stream>>>(a);
  check_launch("rms_norm_forward");
}

template <class Stream, class Branch, int kWidth, int kItems>
void backward_shape(const RmsNormBackward& a, cudaStream_t stream) {
  const unsigned threads = warps_for(ceil_div(a.width, kWidth * kItems), 1024);
  const std::int64_t partials = rms_norm_partials(a.rows);
  backward_kernel<Stream, Branch, kWidth, kItems><<<blocks(partials), threads, 0, stream>>>(a);
  check_launch("rms_norm_backward");
  finish_kernel<<<blocks(ceil_div(a.width, 32)), 1024, 0, stream>>>(
      a.partial, partials, a.width, static_cast<Stream*>(a.dweight));
  check_launch("rms_norm_backward, weight");
}

template <class Stream, class Branch>
void forward(const RmsNormForward& a, cudaStream_t stream) {
  if (!in_eights({a.x, a.delta, a.weight, a.sum, a.y}, {a.width})) {
    forward_shape<Stream, Branch, 1, 4>(a, stream);
  } else {
    forward_shape<Stream, Branch, 8, 1>(a, stream);
  }
}

template <class Stream, class Branch>
void backward(const RmsNormBackward& a, cudaStream_t stream) {
  if (!in_eights({a.dy, a.dsum, a.sum, a.weight, a.dx, a.ddelta, a.partial}, {a.width})) {
    backward_shape<Stream, Branch, 1, 4>(a, stream);
  } else {
    backward_shape<Stream, Branch, 8, 1>(a, stream);
  }
}

void check_shape(std::int64_t width, Type stream, Type branch) {
  if (width > 0 && width <= kMaxNormWidth && !(stream == Type::bf16 && branch == Type::f32)) return;
  throw Error(ErrorKind::unsupported, "fused",
              "a norm over " + std::to_string(width) + " columns of these types");
}

}  // namespace

void rms_norm_forward(const RmsNormForward& args, void* cuda_stream) {
  check_shape(args.width, args.stream, args.branch);
  if (args.rows == 0) return;
  auto* const stream = static_cast<cudaStream_t>(cuda_stream);
  if (args.stream == Type::bf16) {
    forward<Bf16, Bf16>(args, stream);
  } else if (args.branch == Type::bf16) {
    forward<float, Bf16>(args, stream);
  } else {
    forward<float, float>(args, stream);
  }
}

void rms_norm_backward(const RmsNormBackward& args, void* cuda_stream) {
  check_shape(args.width, args.stream, args.branch);
  if (args.rows == 0) return;
  auto* const stream = static_cast<cudaStream_t>(cuda_stream);
  if (args.stream == Type::bf16) {
    backward<Bf16, Bf16>(args, stream);
  } else if (args.branch == Type::bf16) {
    backward<float, Bf16>(args, stream);
  } else {
    backward<float, float>(args, stream);
  }
}

}  // namespace rode::lab::fused
