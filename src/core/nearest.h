// SPDX-License-Identifier: Apache-2.0
// The spelling a user probably meant.
#pragma once

#include <cstddef>
#include <limits>
#include <span>
#include <string>
#include <string_view>

namespace rode {

// The candidate with the fewest edits from `text`; empty if all need more than `most`.
std::string nearest(std::string_view text, std::span<const std::string> candidates,
                    std::size_t most = std::numeric_limits<std::size_t>::max() - 1);

}  // namespace rode
