// SPDX-License-Identifier: Apache-2.0
// The only file that reads c10d's header of gloo. PyTorch's packages contain gloo but not its own
// headers, which that header includes: CMake then puts gloo_declarations.h in their place.
#include "gloo_group.h"

#include <cstdlib>

#ifdef USE_C10D_GLOO
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#endif

#include "rode/error.h"

namespace rode::torch {

#ifdef USE_C10D_GLOO
c10::intrusive_ptr<c10d::Backend> make_gloo_group(const c10::intrusive_ptr<c10d::Store>& store,
                                                  int rank, int size,
                                                  std::chrono::milliseconds timeout,
                                                  bool on_this_machine) {
  using Gloo = c10d::ProcessGroupGloo;
  const auto options = Gloo::Options::create(timeout);
  const char* const interface = std::getenv("GLOO_SOCKET_IFNAME");
  if (on_this_machine) {
    options->devices.push_back(Gloo::createDeviceForHostname("127.0.0.1"));
  } else if (interface != nullptr && *interface != '\0') {
    options->devices.push_back(Gloo::createDeviceForInterface(interface));
  } else {
    options->devices.push_back(Gloo::createDefaultDevice());
  }
  return c10::make_intrusive<Gloo>(store, rank, size, options);
}
#else
c10::intrusive_ptr<c10d::Backend> make_gloo_group(const c10::intrusive_ptr<c10d::Store>&, int, int,
                                                  std::chrono::milliseconds, bool) {
  throw Error(ErrorKind::unsupported, "process group",
              "this LibTorch was built without gloo; use one that has it, as PyTorch's packages "
              "for Linux do, or give an optimizer a process group of your own");
}
#endif

}  // namespace rode::torch
