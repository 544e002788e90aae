// SPDX-License-Identifier: Apache-2.0
// A named weight with its gradient: borrowed from the caller, never owned.
#pragma once

#include <cstdint>
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
  // constructed. To be set if training continues with state in memory that the caller owns.
  std::optional<bool> zero_start = {};
  // Whether the first dimension counts matrices: (E, m, n) are E matrices of m x n, each stepped by
  // itself, as a mixture stores its experts. `layout` is that of each. Unset: where the rank is 3
  // and a component of the name has "expert" in it.
  std::optional<bool> experts = {};
  // Of a part of a larger tensor: its first element there. Stochastic rounding goes by an element's
  // place in the whole.
  std::int64_t first_element = 0;
};

}  // namespace rode
