// SPDX-License-Identifier: Apache-2.0
// A process group of c10d's NCCL.
#pragma once

#include <chrono>
#include <string>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace rode::torch {

// Why no group of NCCL can be made in this program; empty: one can. The next two throw it.
std::string nccl_obstacle();
// Identifies a GPU on any machine: NCCL takes one process per GPU. Throws where
// there is no such device.
std::string gpu_identity(int device);
c10::intrusive_ptr<c10d::Backend> make_nccl_group(const c10::intrusive_ptr<c10d::Store>& store,
                                                  int rank, int size,
                                                  std::chrono::milliseconds timeout);

}  // namespace rode::torch
