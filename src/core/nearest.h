// SPDX-License-Identifier: Apache-2.0
// The spelling a user probably meant.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace rode {

// The candidate with the fewest edits from `text`; empty if there is none.
std::string nearest(std::string_view text, std::span<const std::string> candidates);

}  // namespace rode
