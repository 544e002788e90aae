// SPDX-License-Identifier: Apache-2.0
// The oracle of the tests: every optimizer once more, in double precision, one
// parameter at a time, written from the paper and the authors' sources and
// sharing no equation with the engine (it may not include anything of rules/,
// backend/ or optim/).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace rode::reference {

struct Tensor {
  std::vector<std::int64_t> shape;
  std::vector<double> data;  // row-major
};

// Keys as in the engine's files: "momentum", "snr_norm", "gram.0", "step", ...
using State = std::map<std::string, Tensor>;

// The options of one optimizer as text, keyed as on the command line
// ("lr" -> "1.206e-3", "reproject" -> "guarded", "betas" -> "0.9,0.95").
// Every key that the rule knows must be present: the caller supplies defaults.
using Settings = std::map<std::string, std::string>;

// How the parameter is treated; decided by the caller's routing.
struct Treatment {
  bool matrix = true;                // matrix rule, or the rule of the rest
  bool in_out = false;               // stored as fan-in x fan-out (Conv1D of GPT-2)
  std::vector<std::int64_t> blocks;  // sizes along fan-out; empty: one block
  bool experts = false;              // the first dimension counts matrices
};

struct Diagnostics {  // RODE only, one entry per block
  double rho = 0, rho_next = 0, s = 0, q = 0, theta = 0, gamma = 1, m_norm = 0;
};

// State as it exists before the first step.
State initial_state(const std::string& optimizer, const Settings& settings,
                    const Treatment& treatment, const Tensor& parameter);

// A matrix of an optimizer, with its state.
struct Started {
  const Tensor* parameter;
  Treatment treatment;
  State* state;
};
// What no parameter can tell alone: with on_zero = start the state "start_norm" of all matrices, as
// they are before the first step. Without it, nothing.
void set_starts(const Settings& settings, const std::vector<Started>& all);

// One step. `multiplier` is the schedule's factor on lr, lr_rho and lr_rest.
std::vector<Diagnostics> step(const std::string& optimizer, const Settings& settings,
                              const Treatment& treatment, Tensor& parameter, const Tensor& gradient,
                              State& state, double multiplier = 1.0);

}  // namespace rode::reference
