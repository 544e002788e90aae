// SPDX-License-Identifier: Apache-2.0
// The instructions of compute capability 9.0a that the product kernel is made of, one
// function each: mbarriers, TMA, wgmma, stmatrix.
//
// They are written on PTX rather than taken from CUTLASS: the kernel needs a dozen of them,
// and none of the layers above (collectives, epilogue trees) can hold a matrix's tiles back
// until its sum is known.
#pragma once

#include <cstdint>
#include <type_traits>

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "backend/cuda/device/dependent_launch.cuh"

namespace rode::cuda::hopper {

__device__ inline std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// ---- mbarriers: addresses in shared memory -----------------------------------------------
__device__ inline void mbarrier_init(std::uint32_t barrier, std::uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes the initialised ones visible to the cluster and to TMA.
__device__ inline void mbarrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ inline void mbarrier_expect_tx(std::uint32_t barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

__device__ inline void mbarrier_wait(std::uint32_t barrier, std::uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

__device__ inline void mbarrier_arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives at the mbarrier of the same place in CTA `rank` of the cluster. Without a named
// scope: `.release.cluster` costs a fence of the whole device, and what is handed back here
// was only read.
__device__ inline void mbarrier_arrive_remote(std::uint32_t barrier, std::uint32_t rank) {
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
      "}\n" ::"r"(barrier),
      "r"(rank)
      : "memory");
}

// One thread of the warp, always the same. The compiler knows that what it does is uniform
// and keeps TMA's operands in uniform registers; `threadIdx.x == 0` costs a loop per operand.
__device__ inline bool elect_one() {
  std::uint32_t yes;
  asm volatile(
      "{\n"
      ".reg .pred leader;\n"
      "elect.sync _|leader, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, leader;\n"
      "}\n"
      : "=r"(yes));
  return yes != 0;
}

// Tells the compiler that a value is the same in all lanes.
__device__ inline int uniform(int value) { return __shfl_sync(0xffffffffU, value, 0); }

// ---- Cluster and grid ---------------------------------------------------------------------
__device__ inline std::uint32_t cluster_rank() {
  std::uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

__device__ inline void cluster_sync() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

// A tensor map, on its way before it is used.
__device__ inline void prefetch_tensor_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

template <int kRegisters>
__device__ inline void decrease_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void increase_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// ---- TMA: boxes of (column, row, matrix) ------------------------------------------------------
__device__ inline void tma_load(std::uint32_t to, const CUtensorMap* map, std::uint32_t barrier,
                                int column, int row, int matrix) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to),
      "l"(map), "r"(barrier), "r"(column), "r"(row), "r"(matrix)
      : "memory");
}

// To the same place in every CTA of `mask`; each one's mbarrier counts its own copy.
__device__ inline void tma_load_multicast(std::uint32_t to, const CUtensorMap* map,
                                          std::uint32_t barrier, int column, int row, int matrix,
                                          std::uint16_t mask) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(to),
      "l"(map), "r"(barrier), "r"(column), "r"(row), "r"(matrix), "h"(mask)
      : "memory");
}

__device__ inline void tma_store(const CUtensorMap* map, std::uint32_t from, int column, int row,
                                 int matrix) {
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map),
      "r"(from), "r"(column), "r"(row), "r"(matrix)
      : "memory");
}

__device__ inline void tma_store_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Shared memory may be written again, except what the last kPending groups read.
template <int kPending = 0>
__device__ inline void tma_store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}
// The stores are complete and visible to this thread.
__device__ inline void tma_store_wait() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

// Counters in device memory of tiles that are there: the thread that stored one has waited for it,
// and who has read the counter reads the tile by TMA, behind fence_proxy_async_global().
__device__ inline void release_add(int* count) {
  asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(count) : "memory");
}
__device__ inline int acquire_load(const int* count) {
  int value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(count) : "memory");
  return value;
}
__device__ inline void fence_proxy_async_global() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

// Orders accesses of shared memory before later ones of TMA.
__device__ inline void fence_proxy_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// ---- wgmma ------------------------------------------------------------------------------------
// A descriptor of an operand in shared memory, 128-byte swizzle. Rows along K: groups of 8
// rows lie 1024 bytes apart. Rows along M or N: 8 steps of K lie 1024 bytes apart, 64
// columns 8192.
__device__ inline std::uint64_t descriptor(std::uint32_t address, bool along_k) {
  const std::uint64_t leading = along_k ? 1 : (8192 >> 4);
  return (std::uint64_t{1} << 62) | (std::uint64_t{1024 >> 4} << 32) | (leading << 16) |
         ((address & 0x3ffff) >> 4);
}

__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kLeft>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLeft) : "memory");
}
// Keeps the compiler from moving accumulators across asynchronous wgmma.
__device__ inline void pin_accumulators(float (&d)[64]) {
#pragma unroll
  for (int i = 0; i < 64; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

#define RODE_D8(d, i)                                                                         \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define RODE_WGMMA(type)                                                                          \
  asm volatile(                                                                                   \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"                                                \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type                                \
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, "   \
      "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, "     \
      "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, "     \
      "%53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, %64, %65, p, 1, 1, %67, %68;\n}\n" \
      : RODE_D8(d, 0), RODE_D8(d, 8), RODE_D8(d, 16), RODE_D8(d, 24), RODE_D8(d, 32),             \
        RODE_D8(d, 40), RODE_D8(d, 48), RODE_D8(d, 56)                                            \
      : "l"(a), "l"(b), "r"(accumulate), "n"(kAlongM), "n"(kAlongN))

// D (64 x 128, fp32) = A (64 x 16) B (16 x 128) + accumulate * D. kAlongM, kAlongN: the
// operand's rows run along M or N instead of K.
template <class Element, int kAlongM, int kAlongN>
__device__ inline void wgmma_64x128x16(float (&d)[64], std::uint64_t a, std::uint64_t b,
                                       int accumulate) {
  if constexpr (std::is_same_v<Element, __half>) {
    RODE_WGMMA("f16");
  } else {
    RODE_WGMMA("bf16");
  }
}
#undef RODE_WGMMA
#undef RODE_D8

// ---- Shared memory by its address: generic pointers would take two registers each -------------
__device__ inline std::uint32_t read_shared(std::uint32_t address) {
  std::uint32_t value;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}
__device__ inline void write_shared(std::uint32_t address, std::uint32_t value) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}
__device__ inline uint4 read_shared_16(std::uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
  return v;
}
__device__ inline void write_shared_16(std::uint32_t address, const uint4& v) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v.x), "r"(v.y),
               "r"(v.z), "r"(v.w)
               : "memory");
}

// Four 8 x 8 blocks of 16-bit elements, transposed on the way.
__device__ inline void stmatrix_transposed(std::uint32_t address, std::uint32_t a, std::uint32_t b,
                                           std::uint32_t c, std::uint32_t d) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
      "r"(a), "r"(b), "r"(c), "r"(d)
      : "memory");
}

// Two half-precision numbers in a register.
// Volatile, so that a tile is rounded group by group (kInFlight) and not all at once: the
// compiler would otherwise run out of registers beside the sums.
__device__ inline std::uint32_t pack(float low, float high, __nv_bfloat16) {
  std::uint32_t pair;
  asm volatile("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
__device__ inline std::uint32_t pack(float low, float high, __half) {
  std::uint32_t pair;
  asm volatile("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
__device__ inline float2 unpack(std::uint32_t pair, __nv_bfloat16) {
  return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&pair));
}
__device__ inline float2 unpack(std::uint32_t pair, __half) {
  return __half22float2(*reinterpret_cast<const __half2*>(&pair));
}

}  // namespace rode::cuda::hopper
