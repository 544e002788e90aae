// SPDX-License-Identifier: Apache-2.0
// Checks of a flag's value whose messages say what is expected.
#pragma once

#include <charconv>
#include <cstdint>
#include <string>

#include <CLI/CLI.hpp>

namespace rode::cli {

// CLI::PositiveNumber tells the range of double in full, and takes 0.5 for a count.
inline CLI::Validator at_least_one() {
  const auto check = [](const std::string& text) -> std::string {
    std::int64_t value = 0;
    const char* const end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    if (error == std::errc() && stop == end && value >= 1) return {};
    return "'" + text + "' is no such count; expected a whole number, at least 1";
  };
  return {check, "POSITIVE"};
}

}  // namespace rode::cli
