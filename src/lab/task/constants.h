// SPDX-License-Identifier: Apache-2.0
// Sets of optimizers' options that task files share by name: src/lab/task/constants/*.toml.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "rode/method.h"

namespace rode::lab {

std::vector<std::string> constant_sets();

// What the set says of an optimizer of the engine: its family's table, with that of the preset
// over it. Empty where it names neither.
Settings constants_of(std::string_view set, std::string_view optimizer);

// `from` over `into`: values of the same key are replaced, others appended.
void merge_settings(Settings& into, const Settings& from);

}  // namespace rode::lab
