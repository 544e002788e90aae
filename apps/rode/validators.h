// SPDX-License-Identifier: Apache-2.0
// Checks of a flag's value whose messages say what is expected.
#pragma once

#include <charconv>
#include <cstdint>
#include <limits>
#include <string>

#include <CLI/CLI.hpp>

namespace rode::cli {

// A whole number in a range, for every option that is one. CLI11 alone wraps -1 for unsigned types,
// and CLI::PositiveNumber takes 0.5 for a count.
inline CLI::Validator whole_number(std::uint64_t least,
                                   std::uint64_t most = std::numeric_limits<std::uint64_t>::max()) {
  const std::string range = most == std::numeric_limits<std::uint64_t>::max()
                                ? ">= " + std::to_string(least)
                                : "from " + std::to_string(least) + " to " + std::to_string(most);
  const auto check = [least, most, range](const std::string& text) -> std::string {
    std::uint64_t value = 0;
    const char* const end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    if (error == std::errc() && stop == end && value >= least && value <= most) return {};
    return "expected a whole number " + range + ", got '" + text + "'";
  };
  return {check, range};
}

// Values that pass also fit the variable, and sums of them do.
inline constexpr std::uint64_t kMaxCount = 1'000'000'000;
inline constexpr std::uint64_t kMaxThreads = 4096;

}  // namespace rode::cli
