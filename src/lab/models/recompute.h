// SPDX-License-Identifier: Apache-2.0
// Activation checkpointing: a block that keeps its input and is computed again in the backward
// pass.
#pragma once

#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

namespace rode::lab {

using Block = std::function<at::Tensor(const at::Tensor&)>;

// block(input), with the gradients of input and of `parameters` (all that the block uses and
// that want one) computed from a second run of the block. Autocast and, where `random`, torch's
// generator of the input's device are in the second run as they were in the first. The block
// must have no other effect: not for BatchNorm in training, whose statistics would move twice.
// First derivatives only.
at::Tensor recompute(const Block& block, const at::Tensor& input,
                     const std::vector<at::Tensor>& parameters, bool random);

}  // namespace rode::lab
