// SPDX-License-Identifier: Apache-2.0
// Reading and printing single option values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace rode {

// One option as given, with what an error message needs.
struct OptionText {
  std::string_view optimizer, key, value;
};

struct OptionRange {
  double low, high;
  bool low_open, high_open;
};

constexpr OptionRange at_least(double low) {
  return {low, std::numeric_limits<double>::infinity(), false, true};
}
constexpr OptionRange more_than(double low) {
  return {low, std::numeric_limits<double>::infinity(), true, true};
}
constexpr OptionRange between(double low, double high) { return {low, high, false, false}; }
constexpr OptionRange unit_interval() { return {0, 1, false, true}; }
constexpr OptionRange less_than(double high) {
  return {-std::numeric_limits<double>::infinity(), high, true, true};
}

std::string to_string(const OptionRange& range);  // "0 or more", "in [0, 1)"

// Whether a value is in the range and fits fp32, in which most rules use it.
bool in_range(double value, const OptionRange& range);
// The expectation for a value outside the range: "a finite number >= 0". `noun`: "a number", ...
std::string expectation(double value, const OptionRange& range, std::string_view noun);

// All throw Error{invalid_argument} naming optimizer, key, value and what is expected.
double parse_number(const OptionText& text);
std::int64_t parse_integer(const OptionText& text);
std::uint64_t parse_seed(const OptionText& text);
bool parse_boolean(const OptionText& text);
std::size_t parse_choice(const OptionText& text, std::span<const std::string> names);
void parse_numbers(const OptionText& text, std::span<double> out);
void check_range(const OptionText& text, double value, const OptionRange& range,
                 std::string_view noun = "a number");
[[noreturn]] void throw_unknown_option(std::string_view optimizer, std::string_view key,
                                       std::span<const std::string> keys);

std::string print_number(double value);  // the shortest text that parses back
std::string print_numbers(std::span<const double> values);
std::string join_names(std::span<const std::string> names);  // "a, b or c"

}  // namespace rode
