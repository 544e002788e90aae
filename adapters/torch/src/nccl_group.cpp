// SPDX-License-Identifier: Apache-2.0
// The only file that reads c10d's header of NCCL, which needs those of NCCL and of CUDA's
// libraries: CMake defines RODE_HAS_NCCL where it has found them all (cmake/RodeNccl.cmake).
#include "nccl_group.h"

#include <cstdint>
#include <cstdlib>

#ifdef RODE_HAS_NCCL
#ifndef USE_C10D_NCCL  // c10d's own word for it, without which the header is empty
#define USE_C10D_NCCL
#endif
#include <ATen/cuda/CUDAContext.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#endif

#include "rode/error.h"
#include "rode/torch/ranks.h"

namespace rode::torch {
namespace {

void require_nccl() {
  const std::string why = nccl_obstacle();
  if (why.empty()) return;
  throw Error(ErrorKind::unsupported, "process group",
              "this process cannot use NCCL: " + why + "; or choose backend = gloo");
}

}  // namespace

#ifdef RODE_HAS_NCCL
namespace {

using Nccl = c10d::ProcessGroupNCCL;

// While c10d makes a group, which reads it then and not again: that the thread which waits for a
// call learns of failures. Otherwise a thread of c10d's own ends the process, before an error
// could name the rank that is missing. What the user has set stays.
class FailuresAreThrown {
 public:
  FailuresAreThrown() : given_(std::getenv(kName) != nullptr) { ::setenv(kName, "1", 0); }
  ~FailuresAreThrown() {
    if (!given_) ::unsetenv(kName);
  }
  FailuresAreThrown(const FailuresAreThrown&) = delete;
  FailuresAreThrown& operator=(const FailuresAreThrown&) = delete;

 private:
  static constexpr const char* kName = "TORCH_NCCL_BLOCKING_WAIT";
  bool given_;
};

// Its own destructor asks the user to call a function of Python's. Nothing is under way when the
// last owner is gone, so that there is nothing to wait for.
class NcclGroup final : public Nccl {
 public:
  using Nccl::Nccl;
  ~NcclGroup() override {
    try {
      abort();
    } catch (const std::exception&) {  // the communicators end with the process
    }
  }
};

}  // namespace

// The layout of c10d's options follows the version of nccl.h: LibTorch would misread those that
// were laid out by another one.
std::string nccl_obstacle() {
  const std::uint64_t theirs = ::torch::cuda::nccl::version();
  constexpr int kMajor = 32, kMinor = 16, kMask = 0xffff;
  const auto major = static_cast<int>(theirs >> kMajor);
  const auto minor = static_cast<int>((theirs >> kMinor) & kMask);
  if (major == NCCL_MAJOR && minor == NCCL_MINOR) return {};
  return "the program was built with the header of NCCL " + std::to_string(NCCL_MAJOR) + "." +
         std::to_string(NCCL_MINOR) + ", and its LibTorch with " + std::to_string(major) + "." +
         std::to_string(minor) + ": build it with the header of that version";
}

std::string gpu_identity(int device) {
  require_nccl();
  constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  const cudaDeviceProp* const properties =
      at::cuda::getDeviceProperties(static_cast<c10::DeviceIndex>(device));
  for (const char byte : properties->uuid.bytes) {
    const auto value = static_cast<unsigned char>(byte);
    out += {kDigits[value / 16], kDigits[value % 16]};
  }
  return out;
}

c10::intrusive_ptr<c10d::Backend> make_nccl_group(const c10::intrusive_ptr<c10d::Store>& store,
                                                  int rank, int size,
                                                  std::chrono::milliseconds timeout) {
  require_nccl();
  const FailuresAreThrown thrown;
  const auto options = Nccl::Options::create();
  options->timeout = timeout;
  return c10::make_intrusive<NcclGroup>(store, rank, size, options);
}
#else
std::string nccl_obstacle() {
  return "the program was built without NCCL: build it with a LibTorch for CUDA, where CMake finds "
         "nccl.h (in the package next to torch, or in NCCL_HOME)";
}

std::string gpu_identity(int) {
  require_nccl();
  return {};
}

c10::intrusive_ptr<c10d::Backend> make_nccl_group(const c10::intrusive_ptr<c10d::Store>&, int, int,
                                                  std::chrono::milliseconds) {
  require_nccl();
  return {};
}
#endif

bool is_nccl_available() { return nccl_obstacle().empty(); }

}  // namespace rode::torch
