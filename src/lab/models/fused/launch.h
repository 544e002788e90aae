// SPDX-License-Identifier: Apache-2.0
// What the launches share: their check, alignment, shapes.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include <cuda_runtime_api.h>

#include "backend/cuda_check.h"
#include "rode/error.h"

namespace rode::lab::fused {

using cuda::check;

inline void check_launch(const char* kernel) { check(cudaGetLastError(), kernel); }

// Whether runs of eight elements may be read at 16 bytes each; null pointers are.
inline bool in_eights(std::initializer_list<const void*> arrays,
                      std::initializer_list<std::int64_t> extents) {
  for (const void* array : arrays) {
    if (reinterpret_cast<std::uintptr_t>(array) % 16 != 0) return false;
  }
  for (const std::int64_t extent : extents) {
    if (extent % 8 != 0) return false;
  }
  return true;
}

inline std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Whole warps.
inline unsigned warps_for(std::int64_t threads, std::int64_t most) {
  const std::int64_t whole = ceil_div(threads, 32) * 32;
  return static_cast<unsigned>(whole < most ? whole : most);
}

// Blocks of a launch along x.
inline unsigned blocks(std::int64_t count) {
  if (count > 0x7fffffff) {
    throw Error(ErrorKind::shape, "fused", std::to_string(count) + " blocks in a launch");
  }
  return static_cast<unsigned>(count);
}

}  // namespace rode::lab::fused
