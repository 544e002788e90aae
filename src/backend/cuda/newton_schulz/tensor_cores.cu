// SPDX-License-Identifier: Apache-2.0
// The products on the tensor cores of every chip from compute capability 8.0 on: mma.sync, fed by
// cp.async through a ring of stages in shared memory.
//
// One block per tile of 128 x 128, four warps, each with 64 x 64 sums in fp32 registers: 8 KB of
// shared memory are read for every 64 x 64 x 16 products, half of what 64 x 32 would take. Two
// blocks share a processor, so that one multiplies while the other stores. Rows of shared memory
// are swizzled in 16-byte vectors: the eight rows that ldmatrix reads at a time lie in different
// banks.
#include <type_traits>

#include "backend/cuda/device/reduce.cuh"
#include "backend/cuda/newton_schulz/elements.cuh"
#include "backend/cuda/newton_schulz/products.h"

namespace rode::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kDepth = 32;  // of a stage, along K
constexpr int kStages = 4;
constexpr int kVector = 8;                    // elements of 16 bytes
constexpr int kOperand = kTileSide * kDepth;  // elements of one operand in a stage
constexpr int kPitch = kTileSide + kVector;   // of the finished tile's rows
constexpr std::size_t kRingBytes = 2UL * kStages * 2 * kOperand;
constexpr std::size_t kTileBytes = 2UL * kTileSide * kPitch;
constexpr std::size_t kSharedBytes = kRingBytes > kTileBytes ? kRingBytes : kTileBytes;

// Where the vector at (row, vector) of a staged operand lies. Rows of K have 4 vectors, two of them
// fill the banks; rows of M or N have 16.
template <bool kAlongK>
__device__ inline int staged(int row, int vector) {
  return kAlongK ? row * 4 + (vector ^ (row >> 1 & 3)) : row * 16 + (vector ^ (row & 7));
}

struct Operand {
  const char* data;
  long long stride;  // bytes
  int rows, cols;
};

template <class T>
__device__ Operand operand_of(const PlainOperand& own, int in_bucket) {
  return {reinterpret_cast<const char*>(static_cast<const T*>(own.data) +
                                        in_bucket * own.matrix_stride),
          own.stride * static_cast<long long>(sizeof(T)), own.rows, own.cols};
}

// One operand of one stage. What lies outside of the matrix is zero: rows may end within a vector,
// and what follows in memory is not defined.
template <bool kAlongK>
__device__ inline void load_stage(const Operand& from, int side, int k, unsigned shared) {
#pragma unroll
  for (int i = 0; i < kOperand / kVector / kThreads; ++i) {
    const int at = i * kThreads + static_cast<int>(threadIdx.x);
    const int row = kAlongK ? at / 4 : at / 16, vector = kAlongK ? at % 4 : at % 16;
    const int stored_row = (kAlongK ? side : k) + row;
    const int stored_col = (kAlongK ? k : side) + vector * kVector;
    const int left = stored_row < from.rows ? (from.cols - stored_col) * 2 : 0;
    const int bytes = left < 0 ? 0 : left > 16 ? 16 : left;
    const char* source =
        bytes > 0 ? from.data + stored_row * from.stride + stored_col * 2LL : from.data;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                     shared + 16U * static_cast<unsigned>(staged<kAlongK>(row, vector))),
                 "l"(source), "r"(bytes)
                 : "memory");
  }
}

template <bool kTransposed>
__device__ inline void load_matrices(unsigned (&to)[4], unsigned shared) {
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared));
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared));
  }
}

template <class T>
__device__ inline void multiply(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  if constexpr (std::is_same_v<T, __half>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// A warp's sums: 4 x 8 blocks of 16 x 8, four of each per thread.
struct Sums {
  float at[4][8][4];
};

// The products of one stage. A lane's address is that of a row of one of the four 8 x 8 matrices
// that ldmatrix loads: (row, k), (row + 8, k), (row, k + 8), (row + 8, k + 8) of the left operand,
// (col, k), (col, k + 8), (col + 8, k), (col + 8, k + 8) of the right one.
template <class T, OperandOrder kOrder>
__device__ inline void multiply_stage(Sums& sums, unsigned left, unsigned right, int row, int col) {
  constexpr bool kLeftAlongK = kOrder != OperandOrder::m_n;
  constexpr bool kRightAlongK = kOrder == OperandOrder::k_k;
  const int lane = static_cast<int>(threadIdx.x) % 32, inner = lane % 8;
  const int first = lane / 8 % 2, second = lane / 16;
#pragma unroll
  for (int k = 0; k < kDepth; k += 16) {
    unsigned a[4][4], b[4][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int side = row + 16 * i;
      const int at = kLeftAlongK ? staged<true>(side + inner + 8 * first, k / kVector + second)
                                 : staged<false>(k + inner + 8 * second, side / kVector + first);
      load_matrices<!kLeftAlongK>(a[i], left + 16U * static_cast<unsigned>(at));
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int side = col + 16 * j;
      const int at = kRightAlongK ? staged<true>(side + inner + 8 * second, k / kVector + first)
                                  : staged<false>(k + inner + 8 * first, side / kVector + second);
      load_matrices<!kRightAlongK>(b[j], right + 16U * static_cast<unsigned>(at));
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        multiply<T>(sums.at[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
      }
    }
  }
}

template <class T, OperandOrder kOrder>
__device__ void multiply_tile(Sums& sums, const Operand& a, const Operand& b, int row, int col,
                              int stages, unsigned shared) {
  constexpr unsigned kStageBytes = 4U * kOperand;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const auto load = [&](int stage) {
    if (stage < stages) {
      const unsigned at = shared + static_cast<unsigned>(stage % kStages) * kStageBytes;
      load_stage<kOrder != OperandOrder::m_n>(a, row, stage * kDepth, at);
      load_stage<kOrder == OperandOrder::k_k>(b, col, stage * kDepth, at + kStageBytes / 2);
    }
    // A group for every stage, also an empty one: waiting counts them.
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
#pragma unroll
  for (int stage = 0; stage < kStages - 1; ++stage) load(stage);
  for (int stage = 0; stage < stages; ++stage) {
    asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 2) : "memory");
    __syncthreads();  // the stage has arrived, and everybody has left the one before
    load(stage + kStages - 1);
    const unsigned at = shared + static_cast<unsigned>(stage % kStages) * kStageBytes;
    multiply_stage<T, kOrder>(sums, at, at + kStageBytes / 2, warp / 2 * 64, warp % 2 * 64);
  }
  asm volatile("cp.async.wait_group 0;" ::: "memory");
  __syncthreads();
}

template <class T>
struct Pair {
  T low, high;
};

// The tile from shared memory, rows in vectors; mirrored, its columns.
template <class T>
__device__ void store_tile(const T* tile, const PlainOperand& to, int in_bucket, int row, int col,
                           bool mirrored) {
  T* data = static_cast<T*>(to.data) + in_bucket * to.matrix_stride;
  for (int i = static_cast<int>(threadIdx.x); i < kTileSide * kTileSide / kVector; i += kThreads) {
    const int r = i / (kTileSide / kVector), c = i % (kTileSide / kVector) * kVector;
    const int stored_row = row + r, stored_col = col + c;
    if (stored_row >= to.rows || stored_col >= to.cols) continue;
    // Rows are padded to whole vectors.
    uint4 vector;
    if (mirrored) {
      T* elements = reinterpret_cast<T*>(&vector);
#pragma unroll
      for (int e = 0; e < kVector; ++e) elements[e] = tile[(c + e) * kPitch + r];
    } else {
      vector = *reinterpret_cast<const uint4*>(tile + r * kPitch + c);
    }
    *reinterpret_cast<uint4*>(data + stored_row * to.stride + stored_col) = vector;
  }
}

template <class T, bool kSymmetric>
__global__ void __launch_bounds__(kThreads, 2) tensor_core_kernel(const ProductArgs args) {
  extern __shared__ __align__(128) unsigned char memory[];
  const ProductItem item = args.items[blockIdx.x / kClusterSize];
  const int rank = static_cast<int>(blockIdx.x) % kClusterSize;
  const auto [in_bucket, matrix, row_tile] = item.tiles[rank];
  if (row_tile == kNoTile) return;
  const PlainOperand* own = args.operands + item.bucket * kRoles;
  const bool swap = item.order == OperandOrder::k_n;
  const Phase& phase = args.phases[0];
  const Operand a = operand_of<T>(own[swap ? phase.b : phase.a], in_bucket);
  const Operand b = operand_of<T>(own[swap ? phase.a : phase.b], in_bucket);
  const PlainOperand d = own[phase.d];
  const int row = row_tile * kTileSide, col = item.col_tile * kTileSide;
  const auto shared = static_cast<unsigned>(__cvta_generic_to_shared(memory));
  const int stages = item.depth * (kTileDepth / kDepth);

  Sums sums{};
  if constexpr (kSymmetric) {
    if (item.order == OperandOrder::m_n) {
      multiply_tile<T, OperandOrder::m_n>(sums, a, b, row, col, stages, shared);
    } else {
      multiply_tile<T, OperandOrder::k_k>(sums, a, b, row, col, stages, shared);
    }
  } else {
    if (item.order == OperandOrder::k_n) {
      multiply_tile<T, OperandOrder::k_n>(sums, a, b, row, col, stages, shared);
    } else {
      multiply_tile<T, OperandOrder::k_k>(sums, a, b, row, col, stages, shared);
    }
  }

  Blend blend{1, 0, 0, 0};
  const bool blended = kSymmetric && phase.blends != nullptr;
  if (blended) blend = phase.blends[matrix];
  const bool measure = !kSymmetric && args.projection != Projection::none;
  const bool diagonal = item.mirror != 0 && row_tile == item.col_tile;
  const T* other =
      static_cast<const T*>(own[phase.c].data) + in_bucket * own[phase.c].matrix_stride;
  const __half* u =
      static_cast<const __half*>(own[kRoleU].data) + in_bucket * own[kRoleU].matrix_stride;
  T* tile = reinterpret_cast<T*>(memory);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  float t = 0, xx = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = warp / 2 * 64 + 16 * i + 8 * half + lane / 4;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const int c = warp % 2 * 64 + 8 * j + lane % 4 * 2;
        const int stored_row = row + r, stored_col = col + c;
        const bool inside = stored_row < d.rows && stored_col < d.cols;
        float value[2] = {sums.at[i][j][2 * half], sums.at[i][j][2 * half + 1]};
        if (blended && inside) {
          const auto pair = *reinterpret_cast<const Pair<T>*>(
              other + stored_row * own[phase.c].stride + stored_col);
          value[0] = blend.alpha * value[0] + blend.beta * widen(pair.low);
          value[1] = blend.alpha * value[1] + blend.beta * widen(pair.high);
          if (stored_row == stored_col) value[0] += blend.gamma;
          if (stored_row == stored_col + 1) value[1] += blend.gamma;
        }
        Pair<T> rounded;
        narrow(value[0], rounded.low);
        narrow(value[1], rounded.high);
        if (measure && inside) {
          const auto pair = *reinterpret_cast<const Pair<__half>*>(
              u + stored_row * own[kRoleU].stride + stored_col);
          const float x = widen(rounded.low);
          const float y = stored_col + 1 < d.cols ? widen(rounded.high) : 0.0F;
          t += x * widen(pair.low) + (stored_col + 1 < d.cols ? y * widen(pair.high) : 0.0F);
          xx += x * x + y * y;
        }
        if (!diagonal) {
          *reinterpret_cast<Pair<T>*>(tile + r * kPitch + c) = rounded;
          continue;
        }
        // Symmetric to the last bit: what lies above the diagonal is written on both sides.
        if (r <= c) {
          tile[r * kPitch + c] = rounded.low;
          tile[c * kPitch + r] = rounded.low;
        }
        if (r <= c + 1) {
          tile[r * kPitch + c + 1] = rounded.high;
          tile[(c + 1) * kPitch + r] = rounded.high;
        }
      }
    }
  }
  __syncthreads();
  store_tile(tile, d, in_bucket, row, col, false);
  if (item.mirror != 0 && !diagonal) store_tile(tile, d, in_bucket, col, row, true);
  if (!measure) return;
  __syncthreads();
  const double whole_t = block_sum<kThreads>(static_cast<double>(t));
  const double whole_xx = block_sum<kThreads>(static_cast<double>(xx));
  if (threadIdx.x == 0) args.partials[item.partial + rank] = {whole_t, whole_xx};
}

template <class T, bool kSymmetric>
cudaError_t launch_typed(const ProductArgs& args, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(kClusterSize * args.count);
  tensor_core_kernel<T, kSymmetric><<<blocks, kThreads, kSharedBytes, stream>>>(args);
  return cudaGetLastError();
}

template <class T, bool kSymmetric>
cudaError_t prepare_typed() {
  return cudaFuncSetAttribute(tensor_core_kernel<T, kSymmetric>,
                              cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(kSharedBytes));
}

}  // namespace

cudaError_t prepare_tensor_cores() {
  for (const auto prepare :
       {prepare_typed<__half, true>, prepare_typed<__half, false>,
        prepare_typed<__nv_bfloat16, true>, prepare_typed<__nv_bfloat16, false>}) {
    const cudaError_t error = prepare();
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t launch_tensor_cores(const ProductArgs& args, NsDType dtype, bool symmetric,
                                cudaStream_t stream) {
  if (dtype == NsDType::fp16) {
    return symmetric ? launch_typed<__half, true>(args, stream)
                     : launch_typed<__half, false>(args, stream);
  }
  return symmetric ? launch_typed<__nv_bfloat16, true>(args, stream)
                   : launch_typed<__nv_bfloat16, false>(args, stream);
}

}  // namespace rode::cuda
