// SPDX-License-Identifier: Apache-2.0
// Tensor maps: matrices as TMA addresses them.
#pragma once

#include <cuda.h>

#include "backend/cuda/newton_schulz/plan/plan.h"

namespace rode::cuda {

// Boxes of 64 x 64 elements with the 128-byte swizzle; `count` matrices behind each other.
CUtensorMap make_tensor_map(void* data, const RoleMemory& memory, int count, NsDType dtype);

}  // namespace rode::cuda
