// SPDX-License-Identifier: Apache-2.0
// The checksum of an archive's contents: Torch does not verify its own on load.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "binding.h"

namespace rode::torch {

// Over the step count, every option, name and state tensor, in the order of the parameters; 32
// digits after the tag that docs/files.md describes. `values`: the options of each group as the
// archive holds them, so that one of a version with fewer options keeps its checksum.
std::string archive_checksum(std::int64_t steps,
                             const std::vector<::torch::optim::OptimizerParamGroup>& groups,
                             const std::vector<const GroupOptions*>& options,
                             const std::vector<std::map<std::string, std::string>>& values,
                             const ParamStates& states);

}  // namespace rode::torch
