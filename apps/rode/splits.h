// SPDX-License-Identifier: Apache-2.0
// The option `splits`, read apart from the engine: which blocks a fused matrix has.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "rode/parameter.h"

namespace rode::cli {

// Sizes along fan-out of the blocks that `splits` ("PATTERN=3,PATTERN=768+256+256") gives
// this parameter; empty where no pattern matches. Sizes that do not fit throw Error.
std::vector<std::int64_t> blocks_of(std::string_view splits, const Parameter& parameter);

// Throws Error where a pattern matches none of the parameters.
void check_splits(std::string_view splits, std::span<const Parameter> parameters);

}  // namespace rode::cli
