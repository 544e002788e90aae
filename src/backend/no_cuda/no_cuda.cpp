// SPDX-License-Identifier: Apache-2.0
// Stands in for the CUDA backend in a library built without it.
#include "backend/backend.h"
#include "rode/error.h"

namespace rode {

std::unique_ptr<Backend> make_cuda_backend(const BackendOptions&) {
  throw Error(ErrorKind::unsupported, "cuda",
              "this library was built without CUDA; use device cpu, or rebuild with CUDA");
}

}  // namespace rode
