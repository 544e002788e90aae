// SPDX-License-Identifier: Apache-2.0
// An optimizer's process_group out of a group of c10d's, for programs that have one.
//
//   rode::torch::RODE optimizer(*model, options, {}, rode::torch::process_group(group));
//
// Apart from rode/torch.h, since c10d's headers are slow to compile. For LibTorch that was built
// without c10d there is nothing here.
#pragma once

#include "rode/torch/ranks.h"

#if __has_include(<torch/csrc/distributed/c10d/ProcessGroup.hpp>)
#include <chrono>
#include <optional>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace rode::torch {

struct ProcessGroupOptions {
  // Of each wait; unset: the group's own.
  std::optional<std::chrono::milliseconds> timeout = {};
  // Where ranks whose call has failed report it, so that the others can name those that have not.
  // Null: errors have c10d's text, and come after the timeout.
  c10::intrusive_ptr<c10d::Store> store = {};
  // Of NCCL, which takes a GPU's tensors alone: where messages from the host's memory pass through.
  // Unset: the current device.
  std::optional<c10::Device> device = {};
};

ProcessGroup process_group(const c10::intrusive_ptr<c10d::Backend>& backend,
                           ProcessGroupOptions options = {});
// Its backend for CPUs, or the one for GPUs where that is all it has. The store is the group's own
// where none is given.
ProcessGroup process_group(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                           ProcessGroupOptions options = {});

}  // namespace rode::torch
#endif
