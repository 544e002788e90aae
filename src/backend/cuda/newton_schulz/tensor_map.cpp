// SPDX-License-Identifier: Apache-2.0
// Encodes tensor maps with the driver's function, found at run time: no -lcuda is needed.
#include "backend/cuda/newton_schulz/tensor_map.h"

#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include "backend/cuda/device/check.h"
#include "backend/cuda/newton_schulz/products.h"
#include "rode/error.h"

namespace rode::cuda {
namespace {

PFN_cuTensorMapEncodeTiled_v12000 encoder() {
  static const auto function = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found{};
#if CUDART_VERSION >= 12050
    RODE_CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000,
                                                     cudaEnableDefault, &found));
#else
    RODE_CUDA_CHECK(
        cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &entry, cudaEnableDefault, &found));
#endif
    if (found != cudaDriverEntryPointSuccess || entry == nullptr) {
      throw Error(ErrorKind::unsupported, "cuda",
                  "the driver has no cuTensorMapEncodeTiled; install driver 525 or later");
    }
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(entry);
  }();
  return function;
}

}  // namespace

CUtensorMap make_tensor_map(void* data, const RoleMemory& memory, int count, NsDType dtype) {
  const auto size = [](std::int64_t n) { return static_cast<cuuint64_t>(n); };
  const cuuint64_t dims[3] = {size(memory.cols), size(memory.rows), size(count)};
  const cuuint64_t strides[2] = {size(memory.stride * memory.bytes),
                                 size(memory.matrix_stride * memory.bytes)};
  // 64 rows of 128 bytes.
  const cuuint32_t box[3] = {static_cast<cuuint32_t>(2 * kBoxSide / memory.bytes), kBoxSide, 1};
  const cuuint32_t steps[3] = {1, 1, 1};
  const auto type = memory.bytes == 1        ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                    : dtype == NsDType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                             : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  CUtensorMap map{};
  const CUresult result =
      encoder()(&map, type, 3, data, dims, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    throw Error(ErrorKind::unsupported, "cuda",
                "cuTensorMapEncodeTiled refused a matrix of " + std::to_string(memory.rows) +
                    " x " + std::to_string(memory.cols) + " (code " +
                    std::to_string(static_cast<int>(result)) + ")");
  }
  return map;
}

}  // namespace rode::cuda
