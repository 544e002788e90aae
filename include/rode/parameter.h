// SPDX-License-Identifier: Apache-2.0
// A named weight with its gradient: borrowed from the caller, never owned.
#pragma once

#include <optional>
#include <string>

#include "rode/tensor_view.h"

namespace rode {

// How a matrix is stored. Muon's scale and per-block splits need the true fan-out.
enum class Layout {
  out_in,  // rows are fan-out (PyTorch's Linear and Conv)
  in_out,  // rows are fan-in (Hugging Face GPT-2's Conv1D)
};

// What the caller knows about the parameter's module; used by the `language` route.
enum class Role {
  by_name,    // nothing known: the name decides (routing.h)
  embedding,  // looked up by token or position
  head,       // the projection to the vocabulary
  other,      // any other module: the name is not consulted
};

struct Parameter {
  std::string name;
  TensorView value;      // f32 or bf16
  ConstTensorView grad;  // same shape, f32 or bf16; data may be null until bound
  Layout layout = Layout::out_in;
  Role role = Role::by_name;
  // Whether the weights were zero when they were first stepped, for optimizers that treat such a
  // matrix differently (RodeOptions::on_zero). Unset: the optimizer looks at the weights when it is
  // constructed. To be set where training goes on with state in memory that the caller owns.
  std::optional<bool> zero_start = {};
};

}  // namespace rode
