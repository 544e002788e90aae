// SPDX-License-Identifier: Apache-2.0
// Torch's current CUDA stream, without CUDA's headers.
#pragma once

namespace rode::torch {

// The cudaStream_t that torch enqueues on now. Throws where the process has no CUDA build of torch.
void* current_cuda_stream(int device_index);

}  // namespace rode::torch
