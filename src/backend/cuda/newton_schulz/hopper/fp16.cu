// SPDX-License-Identifier: Apache-2.0
// The Hopper product kernels in fp16.
#include "backend/cuda/newton_schulz/hopper/kernel.cuh"

namespace rode::cuda {

cudaError_t prepare_hopper_fp16(int* clusters) { return hopper::prepare<__half>(clusters); }

cudaError_t launch_hopper_fp16(const ProductArgs& args, ProductKind kind, cudaStream_t stream) {
  return hopper::launch<__half>(args, kind, stream);
}

}  // namespace rode::cuda
