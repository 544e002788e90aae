// SPDX-License-Identifier: Apache-2.0
// Stands in for cuda.cpp in a program built without CUDA: the library's own error.
#include <cstdlib>

#include "backend/backend.h"
#include "bench/cuda.h"

namespace rode::cli {
namespace {

[[noreturn]] void refuse() {
  (void)make_cuda_backend({});  // throws
  std::abort();
}

}  // namespace

CudaMachine describe_cuda_machine() { refuse(); }

CudaCeilings measure_cuda_ceilings() { refuse(); }

CudaSteps time_cuda_steps(const BenchArguments&, const Model&, const Method&) { refuse(); }

}  // namespace rode::cli
