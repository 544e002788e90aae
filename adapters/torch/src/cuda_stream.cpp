// SPDX-License-Identifier: Apache-2.0
// Asks torch's C interface for the stream, by name: a build against a CPU package has no such
// symbol to link, and c10's own class needs cuda_runtime_api.h.
#include "cuda_stream.h"

#include <cstdint>
#include <string>

#include <dlfcn.h>

#include "rode/error.h"

namespace rode::torch {
namespace {

// Part of torch's stable C interface, in libtorch_cuda since 2.4. 0: done.
using CurrentStream = std::int32_t (*)(std::int32_t device_index, void** stream);
constexpr const char* kCurrentStream = "aoti_torch_get_current_cuda_stream";

CurrentStream find() {
  void* symbol = dlsym(RTLD_DEFAULT, kCurrentStream);
  if (symbol == nullptr) {
    // Loaded, but not for everybody: as a dependency of a module of Python's, say.
    if (void* library = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD)) {
      symbol = dlsym(library, kCurrentStream);
    }
  }
  return reinterpret_cast<CurrentStream>(symbol);
}

}  // namespace

void* current_cuda_stream(int device_index) {
  static const CurrentStream current = find();
  void* stream = nullptr;
  if (current != nullptr && current(device_index, &stream) == 0) return stream;
  throw Error(ErrorKind::unsupported, "step",
              "no current stream of cuda:" + std::to_string(device_index) + ": " +
                  (current != nullptr ? "torch returned an error"
                                      : "this process has loaded no libtorch_cuda; link a CUDA "
                                        "build of LibTorch 2.4 or later"));
}

}  // namespace rode::torch
