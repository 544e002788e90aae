// SPDX-License-Identifier: Apache-2.0
// Batched half-precision products of mixed shapes: what a launch is told.
//
// Two kinds of product make up Newton-Schulz. A symmetric one (X^T X, A A, commuting
// factors) computes one tile of every pair on either side of the diagonal and writes it twice. An
// applying one (X P) can take inner products with U as it goes. A work item is two tiles of
// 128 x 128 of one column, for a cluster of two CTAs: they share their right operand, or belong to
// two matrices.
#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "backend/cuda/newton_schulz/plan/plan.h"
#include "rules/matrix_step.h"
#include "rules/newton_schulz_rule.h"
#include "rules/split_rule.h"

namespace rode::cuda {

inline constexpr int kBoxSide = 64;  // of TMA's boxes: 128 bytes per row

using PartialSums = rules::IterateSums;  // of one tile

// D = alpha A B + beta C + gamma I.
struct Blend {
  float alpha, beta, gamma, unused;
};

// Plain addresses of a bucket's matrices in one role.
struct PlainOperand {
  void* data = nullptr;
  long long stride = 0, matrix_stride = 0;
  int rows = 0, cols = 0;
};

// One product of a launch.
struct Phase {
  Role a = kRoleX, b = kRoleX, c = kRoleP, d = kRoleY;
  // Symmetric products; null: D = A B.
  const Blend* blends = nullptr;  // [matrix]
  // [matrix]: tiles that are in device memory, for the phase after this one; null: it is the last.
  int* written = nullptr;
  // [matrix]: ||G||_F^2 of the first Gram product (schatten.cuh), which adds to it; the polynomial
  // of the first iteration, the one with blends, reads it. Null: the set has no such start.
  long long* squares = nullptr;
  // The split form: what its operands are multiplied with (where `squares` is set, P's further
  // divided by rules::schatten_room()).
  rules::SplitScales scales{};
};

// The reprojection of an iterate: factor (X - t U).
struct Correction {
  float t, factor;
};

struct ProductArgs {
  const CUtensorMap* maps = nullptr;       // [bucket][role]; not for the plain path
  const PlainOperand* operands = nullptr;  // [bucket][role]
  const ProductItem* items = nullptr;
  const int* lists = nullptr;  // cluster c has items lists[c] .. lists[c + 1]
  int clusters = 0;
  int count = 0, longest = 0;  // items in all, and of the longest list
  Phase phases[kMostPhases];   // applying products, and the plain path, have one
  int phase_count = 1;
  const float* start_scale = nullptr;  // [matrix], for `squares`
  // Applying products.
  Projection projection = Projection::none;
  rules::NsGuard guard{};  // where it is guarded
  PartialSums* partials = nullptr;
  const TileRange* tiles = nullptr;         // [matrix]
  long long* words = nullptr;               // [matrix]: sums as they come in (hopper/reproject.cuh)
  const Correction* corrections = nullptr;  // [matrix], of the split form: made as X is read
  bool promote = false;                     // the split form: sums of every load are added in fp32
};

// Compute capability 9.0 (hopper/kernel.cuh).
enum class ProductKind {
  symmetric,
  apply,
  measured,  // with the sums of D and U
  held,      // reprojected before it is stored (hopper/held.cuh)
  behind,    // reprojected beside the products that follow (hopper/behind.cuh)
};
cudaError_t launch_hopper_bf16(const ProductArgs& args, ProductKind kind, cudaStream_t stream);
cudaError_t launch_hopper_fp16(const ProductArgs& args, ProductKind kind, cudaStream_t stream);

// The split form: symmetric, apply and measured products.
cudaError_t launch_hopper_fp8(const ProductArgs& args, ProductKind kind, cudaStream_t stream);

// Before an iteration of the split form: X's copies in e4m3, the diagonal of its Gram matrix, and
// the corrections that the next product makes (hopper/quantize.cu).
struct QuantizeArgs {
  const PlainOperand* operands = nullptr;  // [bucket][role]
  const int* members = nullptr;            // matrices of the batch
  int count = 0;                           // of them
  const ProductItem* items = nullptr;      // of the applying products
  const int* lists = nullptr;
  int clusters = 0, longest = 0;
  Projection projection = Projection::none;  // of the product before
  rules::NsGuard guard{};
  const PartialSums* partials = nullptr;
  const TileRange* tiles = nullptr;   // [matrix]
  Correction* corrections = nullptr;  // [matrix]
  const int* first_strip = nullptr;   // [matrix]: its first of `arrived`
  int* arrived = nullptr;             // tiles of a strip that are done; zeros between passes
  float scale = 1;                    // of X
};
cudaError_t launch_quantize(const QuantizeArgs& args, cudaStream_t stream);

// Once per device, before the first launch: the clusters that fit at once.
cudaError_t prepare_hopper_bf16(int* clusters);
cudaError_t prepare_hopper_fp16(int* clusters);
cudaError_t prepare_hopper_fp8();

// Any device and element type (plain.cu).
cudaError_t launch_plain(const ProductArgs& args, NsDType dtype, bool symmetric,
                         cudaStream_t stream);
// Half precision, compute capability 8.0 and later (tensor_cores.cu).
cudaError_t launch_tensor_cores(const ProductArgs& args, NsDType dtype, bool symmetric,
                                cudaStream_t stream);
// Once per device, before the first launch.
cudaError_t prepare_tensor_cores();
// D <- factor (D - t U), after an applying product that was measured (project.cu).
cudaError_t launch_projection(const ProductArgs& args, NsDType dtype, cudaStream_t stream);

// Before a run: every iteration's blends from the start's scale, and no sums yet.
struct BlendArgs {
  const int* members = nullptr;  // matrices of the batch
  int count = 0, steps = 0, matrices = 0;
  Coefficients coefficients = Coefficients::jordan;
  const float* start_scale = nullptr;  // [matrix]
  Blend* blends = nullptr;             // [step][matrix]
  long long* words = nullptr;          // [step][matrix]
  long long* squares = nullptr;        // [matrix]
  int* written = nullptr;              // [product][matrix]
  int products = 0;
};
cudaError_t launch_blends(const BlendArgs& args, cudaStream_t stream);

// After a run: t and xx of each matrix, its tiles added in one order.
struct SumArgs {
  const int* members = nullptr;
  int count = 0;
  const TileRange* tiles = nullptr;  // [matrix]
  const PartialSums* partials = nullptr;
  rules::IterateSums* sums = nullptr;  // [matrix]
};
cudaError_t launch_sums(const SumArgs& args, cudaStream_t stream);

}  // namespace rode::cuda
