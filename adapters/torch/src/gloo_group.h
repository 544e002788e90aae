// SPDX-License-Identifier: Apache-2.0
// A process group of c10d's gloo.
#pragma once

#include <chrono>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace rode::torch {

// `on_this_machine`: all ranks are; else the interface of GLOO_SOCKET_IFNAME, or the one that this
// machine's name leads to. Throws where LibTorch was built without gloo.
c10::intrusive_ptr<c10d::Backend> make_gloo_group(const c10::intrusive_ptr<c10d::Store>& store,
                                                  int rank, int size,
                                                  std::chrono::milliseconds timeout,
                                                  bool on_this_machine);

}  // namespace rode::torch
