// SPDX-License-Identifier: Apache-2.0
// The rate of large bf16 products by cuBLAS, loaded at run time: not linked.
#include "bench/cublas.h"

#include <algorithm>
#include <memory>
#include <vector>

#include <dlfcn.h>
#include <library_types.h>

namespace rode::cli {
namespace {

// The part of cuBLAS's C interface that is called, as its releases 12 and 13 have it.
using Handle = void*;
using Create = int (*)(Handle*);
using Destroy = int (*)(Handle);
using SetStream = int (*)(Handle, cudaStream_t);
using GemmEx = int (*)(Handle, int, int, int, int, int, const void*, const void*, cudaDataType_t,
                       int, const void*, cudaDataType_t, int, const void*, void*, cudaDataType_t,
                       int, int, int);
constexpr int kTransposed = 1;
constexpr int kCompute32F = 68;
constexpr int kDefaultAlgorithm = -1;

struct CloseLibrary {
  void operator()(void* library) const { ::dlclose(library); }
};
using Library = std::unique_ptr<void, CloseLibrary>;

Library open_cublas() {
  for (const char* name :
       {"libcublas.so.13", "libcublas.so.12", "/usr/local/cuda/lib64/libcublas.so.13",
        "/usr/local/cuda/lib64/libcublas.so.12"}) {
    if (void* library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL)) return Library(library);
  }
  return nullptr;
}

template <class Function>
Function find(const Library& library, const char* name) {
  return reinterpret_cast<Function>(::dlsym(library.get(), name));
}

struct Events {
  Events() {
    if (cudaEventCreate(&start) != cudaSuccess) start = nullptr;
    if (cudaEventCreate(&stop) != cudaSuccess) stop = nullptr;
  }
  ~Events() {
    if (start != nullptr) (void)cudaEventDestroy(start);
    if (stop != nullptr) (void)cudaEventDestroy(stop);
  }
  Events(const Events&) = delete;
  Events& operator=(const Events&) = delete;

  cudaEvent_t start = nullptr;
  cudaEvent_t stop = nullptr;
};

}  // namespace

std::optional<double> cublas_tflops(int n, const void* a, const void* b, void* c, int repeat,
                                    cudaStream_t stream) {
  const Library library = open_cublas();
  if (!library) return {};
  const auto create = find<Create>(library, "cublasCreate_v2");
  const auto destroy = find<Destroy>(library, "cublasDestroy_v2");
  const auto set_stream = find<SetStream>(library, "cublasSetStream_v2");
  const auto gemm = find<GemmEx>(library, "cublasGemmEx");
  Handle handle = nullptr;
  if (!create || !destroy || !set_stream || !gemm || create(&handle) != 0) return {};

  const float one = 1;
  const float zero = 0;
  const Events events;
  std::vector<float> ms;
  bool good = set_stream(handle, stream) == 0 && events.start && events.stop;
  constexpr int kWarmup = 10;
  for (int i = 0; good && i < kWarmup + repeat; ++i) {
    float elapsed = 0;
    good = cudaEventRecord(events.start, stream) == cudaSuccess &&
           // Both operands with their long axis inside: the fastest layout.
           gemm(handle, kTransposed, 0, n, n, n, &one, a, CUDA_R_16BF, n, b, CUDA_R_16BF, n, &zero,
                c, CUDA_R_16BF, n, kCompute32F, kDefaultAlgorithm) == 0 &&
           cudaEventRecord(events.stop, stream) == cudaSuccess &&
           cudaEventSynchronize(events.stop) == cudaSuccess &&
           cudaEventElapsedTime(&elapsed, events.start, events.stop) == cudaSuccess;
    if (i >= kWarmup) ms.push_back(elapsed);
  }
  (void)destroy(handle);
  if (!good) return {};
  std::ranges::sort(ms);
  const double flops = 2.0 * n * n * n;
  return flops / (1e-3 * static_cast<double>(ms[ms.size() / 2])) * 1e-12;
}

}  // namespace rode::cli
