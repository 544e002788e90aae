// SPDX-License-Identifier: Apache-2.0
// The text of CUDA errors.
#include "backend/cuda/device/check.h"

#include <cstdlib>
#include <string_view>

#include <fmt/format.h>

#include "rode/error.h"

namespace rode::cuda {

void throw_cuda_error(cudaError_t error, const char* expression, const char* file, int line) {
  int device = -1;
  if (cudaGetDevice(&device) != cudaSuccess) device = -1;
  // The error of a refused call would otherwise be reported again by the next launch. That of
  // a broken context stays whatever is done.
  ignore(cudaGetLastError());
  std::string_view path = file;
  if (const auto slash = path.rfind('/'); slash != std::string_view::npos) {
    path.remove_prefix(slash + 1);
  }
  const char* remedy = error == cudaErrorMemoryAllocation
                           ? "; free device memory, or step fewer parameters on this device"
                           : "";
  throw Error(ErrorKind::unsupported, "cuda",
              fmt::format("{} ({}) from {} at {}:{} on device {}{}", cudaGetErrorString(error),
                          cudaGetErrorName(error), expression, path, line, device, remedy));
}

bool synchronises() {
  static const bool wanted = [] {
    const char* value = std::getenv("RODE_CUDA_SYNC");
    return value != nullptr && std::string_view(value) == "1";
  }();
  return wanted;
}

void check_launch(cudaStream_t stream, const char* kernel, const char* file, int line) {
  cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess && synchronises()) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    error = cudaStreamIsCapturing(stream, &status);
    if (error == cudaSuccess && status == cudaStreamCaptureStatusNone) {
      error = cudaStreamSynchronize(stream);
    }
  }
  if (error != cudaSuccess) throw_cuda_error(error, kernel, file, line);
}

}  // namespace rode::cuda
