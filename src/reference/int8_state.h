// SPDX-License-Identifier: Apache-2.0
// Momentum that is kept in 8 bits between steps.
#pragma once

#include <string>

#include "reference/reference.h"

namespace rode::reference {

bool has_int8_state(const Settings& settings);

// The state that is quantised: "momentum", "exp_avg"; empty if there is none.
std::string quantized_key(const State& state);

// Replaces that entry by whole numbers and adds its scales, one per 256 elements along a row; the
// second is the inverse. `treatment` decides what a row is.
void quantize(State& state, const Treatment& treatment);
void dequantize(State& state, const Treatment& treatment);

}  // namespace rode::reference
