// SPDX-License-Identifier: Apache-2.0
// The Hopper product kernels in bf16.
#include "backend/cuda/newton_schulz/hopper/kernel.cuh"

namespace rode::cuda {

cudaError_t prepare_hopper_bf16(int* clusters) { return hopper::prepare<__nv_bfloat16>(clusters); }

cudaError_t launch_hopper_bf16(const ProductArgs& args, ProductKind kind, cudaStream_t stream) {
  return hopper::launch<__nv_bfloat16>(args, kind, stream);
}

}  // namespace rode::cuda
