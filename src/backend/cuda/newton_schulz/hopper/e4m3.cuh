// SPDX-License-Identifier: Apache-2.0
// The instructions that e4m3 operands need beside those of ptx.cuh.
#pragma once

#include <cstdint>

#include <cuda_fp16.h>

#include "backend/cuda/newton_schulz/hopper/ptx.cuh"

namespace rode::cuda::hopper {

// An operand in e4m3. Both lie along K: wgmma has no other order for bytes.
struct E4m3 {};

#define RODE_D8(d, i)                                                                         \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
// D (64 x 128, fp32) = A (64 x 32) B (32 x 128) + accumulate * D: 32 bytes of K as two bytes' 16.
__device__ inline void wgmma_64x128x32(float (&d)[64], std::uint64_t a, std::uint64_t b,
                                       int accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3"
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, "
      "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, "
      "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, "
      "%53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, %64, %65, p, 1, 1;\n}\n"
      : RODE_D8(d, 0), RODE_D8(d, 8), RODE_D8(d, 16), RODE_D8(d, 24), RODE_D8(d, 32),
        RODE_D8(d, 40), RODE_D8(d, 48), RODE_D8(d, 56)
      : "l"(a), "l"(b), "r"(accumulate));
}
// The same of 64 columns.
__device__ inline void wgmma_64x64x32(float (&d)[32], std::uint64_t a, std::uint64_t b,
                                      int accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3"
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, "
      "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, p, 1, 1;\n}\n"
      : RODE_D8(d, 0), RODE_D8(d, 8), RODE_D8(d, 16), RODE_D8(d, 24)
      : "l"(a), "l"(b), "r"(accumulate));
}
#undef RODE_D8

// A box of (column, row, matrix) into L2.
__device__ inline void tma_prefetch(const CUtensorMap* map, int column, int row, int matrix) {
  asm volatile("cp.async.bulk.prefetch.tensor.3d.L2.global [%0, {%1, %2, %3}];" ::"l"(map),
               "r"(column), "r"(row), "r"(matrix)
               : "memory");
}

__device__ inline float read_shared_float(std::uint32_t address) {
  float value;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
  return value;
}
__device__ inline float2 read_shared_pair(std::uint32_t address) {
  float2 value;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
               : "=f"(value.x), "=f"(value.y)
               : "r"(address)
               : "memory");
  return value;
}
__device__ inline std::uint32_t read_shared_2(std::uint32_t address) {
  std::uint16_t value;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(value) : "r"(address) : "memory");
  return value;
}
__device__ inline void write_shared_2(std::uint32_t address, std::uint32_t value) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(address), "h"(static_cast<std::uint16_t>(value))
               : "memory");
}

// Two numbers of e4m3 in 16 bits. Volatile as pack(): a tile is rounded group by group.
__device__ inline std::uint32_t pack_e4m3(float low, float high) {
  std::uint16_t pair;
  asm volatile("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  return pair;
}
__device__ inline float2 unpack_e4m3(std::uint32_t pair) {
  std::uint32_t halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<std::uint16_t>(pair)));
  return __half22float2(*reinterpret_cast<const __half2*>(&halves));
}

}  // namespace rode::cuda::hopper
