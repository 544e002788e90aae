// SPDX-License-Identifier: Apache-2.0
// The products on the tensor cores of every chip from compute capability 8.0 on.
//
// One block per tile of 128 x 128, four warps, each with 64 x 64 sums in fp32 registers: per 16 of
// K a warp reads 4 KB of shared memory for 64 x 64 x 16 products, two thirds of what 64 x 32 would
// take. Two blocks share a processor, so that one multiplies while the other stores. What the
// epilogue needs, C or U, follows the operands through the ring.
#include "backend/cuda/device/reduce.cuh"
#include "backend/cuda/newton_schulz/schatten.cuh"
#include "backend/cuda/newton_schulz/tensor_cores.cuh"

namespace rode::cuda {
namespace {

using namespace tensor_cores;

template <class T>
struct Pair {
  T low, high;
};

// Where element `which` of sums.at[i][j] lies in the tile.
__device__ inline int row_of(int i, int which) {
  return static_cast<int>(threadIdx.x) / 64 * 64 + 16 * i + which / 2 * 8 +
         static_cast<int>(threadIdx.x) % 32 / 4;
}
__device__ inline int col_of(int j) {
  return static_cast<int>(threadIdx.x) / 32 % 2 * 64 + 8 * j +
         static_cast<int>(threadIdx.x) % 4 * 2;
}

template <class T>
__device__ inline Pair<T> read_pair(unsigned shared) {
  unsigned bits;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(bits) : "r"(shared));
  return *reinterpret_cast<const Pair<T>*>(&bits);
}

// Sums <- alpha Sums + beta C + gamma I. What lies outside of the matrix stays zero.
template <class T>
__device__ void blend_sums(Sums& sums, const Blend& blend, unsigned shared, int stages,
                           bool diagonal) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = row_of(i, 2 * half);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const int c = col_of(j);
        float(&own)[4] = sums.at[i][j];
        const Pair<T> other = read_pair<T>(companion_at(shared, stages, r, c));
        own[2 * half] = blend.alpha * own[2 * half] + blend.beta * widen(other.low);
        own[2 * half + 1] = blend.alpha * own[2 * half + 1] + blend.beta * widen(other.high);
        if (diagonal && r == c) own[2 * half] += blend.gamma;
        if (diagonal && r == c + 1) own[2 * half + 1] += blend.gamma;
      }
    }
  }
}

// <D, U> and ||D||^2 of the elements as they will be stored. Outside of the matrix both are zero.
template <class T>
__device__ float2 measure_sums(const Sums& sums, unsigned shared, int stages) {
  float2 measured{0, 0};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = row_of(i, 2 * half);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const Pair<__half> u = read_pair<__half>(companion_at(shared, stages, r, col_of(j)));
        T rounded[2];
        narrow(sums.at[i][j][2 * half], rounded[0]);
        narrow(sums.at[i][j][2 * half + 1], rounded[1]);
        const float x = widen(rounded[0]), y = widen(rounded[1]);
        measured.x += x * widen(u.low) + y * widen(u.high);
        measured.y += x * x + y * y;
      }
    }
  }
  return measured;
}

// The squares of the elements as they will be stored, those beside the tile included: of a tile on
// the diagonal, what lies above it is stored twice.
template <class T>
__device__ float square_sums(const Sums& sums, bool mirror, bool diagonal) {
  float once = 0, twice = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int which = 0; which < 4; ++which) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        T rounded;
        narrow(sums.at[i][j][which], rounded);
        const float x = widen(rounded);
        const int below = row_of(i, which) - col_of(j) - which % 2;
        const bool counts = !mirror || !diagonal || below <= 0;
        if (mirror && (!diagonal || below < 0)) {
          twice += x * x;
        } else if (counts) {
          once += x * x;
        }
      }
    }
  }
  return once + 2 * twice;
}

// Rounds the sums into shared memory. A tile on the diagonal becomes symmetric to the last bit:
// what lies above the diagonal is written on both sides.
template <class T>
__device__ void round_tile(const Sums& sums, bool diagonal, T* tile) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = row_of(i, 2 * half);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const int c = col_of(j);
        Pair<T> rounded;
        narrow(sums.at[i][j][2 * half], rounded.low);
        narrow(sums.at[i][j][2 * half + 1], rounded.high);
        if (!diagonal) {
          *reinterpret_cast<Pair<T>*>(tile + r * kPitch + c) = rounded;
          continue;
        }
        if (r <= c) tile[r * kPitch + c] = tile[c * kPitch + r] = rounded.low;
        if (r <= c + 1) tile[r * kPitch + c + 1] = tile[(c + 1) * kPitch + r] = rounded.high;
      }
    }
  }
}

template <class T>
struct alignas(16) Vector {
  T at[kVector];
};

// The tile from shared memory, in whole vectors: rows are padded to them.
template <class T>
__device__ void store_tile(const T* tile, const PlainOperand& to, int in_bucket, int row, int col) {
  constexpr int kAcross = kTileSide / kVector, kRowsApart = kThreads / kAcross;
  const int r = static_cast<int>(threadIdx.x) / kAcross;
  const int c = static_cast<int>(threadIdx.x) % kAcross * kVector;
  if (col + c >= to.cols) return;
  T* data =
      static_cast<T*>(to.data) + in_bucket * to.matrix_stride + (row + r) * to.stride + col + c;
#pragma unroll 4
  for (int down = 0; down < kTileSide; down += kRowsApart) {
    if (row + r + down >= to.rows) break;
    *reinterpret_cast<Vector<T>*>(data + down * to.stride) =
        *reinterpret_cast<const Vector<T>*>(tile + (r + down) * kPitch + c);
  }
}

// Its columns as rows. Sixteen lanes read along a row of shared memory, and two of them write 32
// bytes of a row of D: whole sectors.
template <class T>
__device__ void store_mirrored(const T* tile, const PlainOperand& to, int in_bucket, int row,
                               int col) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  T* data = static_cast<T*>(to.data) + in_bucket * to.matrix_stride;
#pragma unroll 2
  for (int i = 0; i < kTileSide * kTileSide / kVector / kThreads; ++i) {
    const int r = i % 8 * 16 + lane % 16, c = (i / 8 * 8 + warp * 2 + lane / 16) * kVector;
    if (row + r >= to.rows || col + c >= to.cols) continue;
    Vector<T> vector;
#pragma unroll
    for (int e = 0; e < kVector; ++e) vector.at[e] = tile[(c + e) * kPitch + r];
    *reinterpret_cast<Vector<T>*>(data + (row + r) * to.stride + col + c) = vector;
  }
}

enum class Epilogue {
  store,
  blend,    // with C
  measure,  // with U
  squares,  // of the first Gram matrix, where a Schatten-4 norm needs them
};

template <class T, bool kSymmetric, Epilogue kEpilogue>
__global__ void __launch_bounds__(kThreads, 2) tensor_core_kernel(const ProductArgs args) {
  extern __shared__ __align__(128) unsigned char memory[];
  const ProductItem item = args.items[blockIdx.x / kClusterSize];
  const int rank = static_cast<int>(blockIdx.x) % kClusterSize;
  const auto [in_bucket, matrix, row_tile] = item.tiles[rank];
  if (row_tile == kNoTile) return;
  const PlainOperand* own = args.operands + item.bucket * kRoles;
  const bool swap = item.order == OperandOrder::k_n;
  const Phase& phase = args.phases[0];
  const PlainOperand& a = own[swap ? phase.b : phase.a];
  const PlainOperand& b = own[swap ? phase.a : phase.b];
  const int row = row_tile * kTileSide, col = item.col_tile * kTileSide;
  const auto shared = static_cast<unsigned>(__cvta_generic_to_shared(memory));
  const int stages = item.depth * (kTileDepth / kDepth);

  Companion<T> companion(own[kEpilogue == Epilogue::blend ? phase.c : kRoleU], in_bucket, col, row);
  constexpr bool kAlone = kEpilogue == Epilogue::store || kEpilogue == Epilogue::squares;
  Companion<T>* const beside = kAlone ? nullptr : &companion;
  Sums sums{};
  constexpr OperandOrder kOther = kSymmetric ? OperandOrder::m_n : OperandOrder::k_n;
  if (item.order == kOther) {
    multiply_tile<T, kOther>(sums, a, b, beside, in_bucket, row, col, stages, shared);
  } else {
    multiply_tile<T, OperandOrder::k_k>(sums, a, b, beside, in_bucket, row, col, stages, shared);
  }

  const bool diagonal = row_tile == item.col_tile;
  float2 measured{0, 0};
  if constexpr (kEpilogue == Epilogue::blend) {
    Blend blend = phase.blends[matrix];
    if (phase.squares != nullptr) {
      blend = of_squares(blend, phase.squares + matrix, own[phase.d].rows);
    }
    blend_sums<T>(sums, blend, shared, stages, diagonal);
    __syncthreads();
  } else if constexpr (kEpilogue == Epilogue::measure) {
    measured = measure_sums<T>(sums, shared, stages);
    __syncthreads();
  } else if constexpr (kEpilogue == Epilogue::squares) {
    measured.x = square_sums<T>(sums, item.mirror != 0, diagonal);
  }
  T* tile = reinterpret_cast<T*>(memory);
  const bool symmetric = item.mirror != 0 && diagonal;
  round_tile(sums, symmetric, tile);
  __syncthreads();
  store_tile(tile, own[phase.d], in_bucket, row, col);
  if (item.mirror != 0 && !diagonal) store_mirrored(tile, own[phase.d], in_bucket, col, row);
  if constexpr (kEpilogue == Epilogue::measure) {
    const double t = block_sum<kThreads>(static_cast<double>(measured.x));
    const double xx = block_sum<kThreads>(static_cast<double>(measured.y));
    if (threadIdx.x == 0) args.partials[item.partial + rank] = {t, xx};
  } else if constexpr (kEpilogue == Epilogue::squares) {
    const double squares = block_sum<kThreads>(static_cast<double>(measured.x));
    if (threadIdx.x == 0) add_squares(phase.squares + matrix, squares, args.start_scale[matrix]);
  }
}

// Calls f(kernel) for every one of them.
template <class T, class F>
cudaError_t for_each_kernel(F&& f) {
  for (const auto kernel :
       {tensor_core_kernel<T, true, Epilogue::store>, tensor_core_kernel<T, true, Epilogue::blend>,
        tensor_core_kernel<T, true, Epilogue::squares>,
        tensor_core_kernel<T, false, Epilogue::store>,
        tensor_core_kernel<T, false, Epilogue::measure>}) {
    const cudaError_t error = f(kernel);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

template <class T>
cudaError_t launch_typed(const ProductArgs& args, bool symmetric, cudaStream_t stream) {
  const Phase& phase = args.phases[0];
  auto kernel = tensor_core_kernel<T, true, Epilogue::store>;
  if (!symmetric) {
    kernel = args.projection != Projection::none ? tensor_core_kernel<T, false, Epilogue::measure>
                                                 : tensor_core_kernel<T, false, Epilogue::store>;
  } else if (phase.blends != nullptr) {
    kernel = tensor_core_kernel<T, true, Epilogue::blend>;
  } else if (phase.squares != nullptr) {
    kernel = tensor_core_kernel<T, true, Epilogue::squares>;
  }
  const auto blocks = static_cast<unsigned>(kClusterSize * args.count);
  kernel<<<blocks, kThreads, kSharedBytes, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace

cudaError_t prepare_tensor_cores() {
  const auto allow = [](auto kernel) {
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                static_cast<int>(kSharedBytes));
  };
  const cudaError_t error = for_each_kernel<__half>(allow);
  return error != cudaSuccess ? error : for_each_kernel<__nv_bfloat16>(allow);
}

cudaError_t launch_tensor_cores(const ProductArgs& args, NsDType dtype, bool symmetric,
                                cudaStream_t stream) {
  return dtype == NsDType::fp16 ? launch_typed<__half>(args, symmetric, stream)
                                : launch_typed<__nv_bfloat16>(args, symmetric, stream);
}

}  // namespace rode::cuda
