// SPDX-License-Identifier: Apache-2.0
// Parsing, printing and range checks of option values.
#include "optim/option_text.h"

#include <algorithm>
#include <cfloat>
#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include "core/nearest.h"
#include "rode/error.h"

namespace rode {
namespace {

[[noreturn]] void refuse(const OptionText& text, std::string_view expected,
                         std::string_view advice = "") {
  throw Error(
      ErrorKind::invalid_argument, text.optimizer,
      fmt::format("option '{}': expected {}, got '{}'{}", text.key, expected, text.value, advice));
}

template <class Number>
bool parse(std::string_view text, Number& value) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end && !text.empty();
}

// "in [0, 1)", ">= 0"
std::string bounds(const OptionRange& range) {
  const bool low = std::isfinite(range.low), high = std::isfinite(range.high);
  if (low && high) return to_string(range);
  if (low) return fmt::format("{} {}", range.low_open ? ">" : ">=", range.low);
  if (high) return fmt::format("{} {}", range.high_open ? "<" : "<=", range.high);
  return "of any size";
}

// It becomes zero in fp32, though the range excludes zero.
bool vanishes(double value, const OptionRange& range) {
  return range.low_open && range.low == 0 && !(static_cast<float>(value) > 0);
}

}  // namespace

std::string to_string(const OptionRange& range) {
  const bool low = std::isfinite(range.low), high = std::isfinite(range.high);
  if (low && high) {
    return fmt::format("in {}{}, {}{}", range.low_open ? '(' : '[', range.low, range.high,
                       range.high_open ? ')' : ']');
  }
  if (low)
    return range.low_open ? fmt::format("more than {}", range.low)
                          : fmt::format("{} or more", range.low);
  if (high) return fmt::format("less than {}", range.high);
  return "any number";
}

double parse_number(const OptionText& text) {
  double value = 0;
  if (!parse(text.value, value)) refuse(text, "a number such as 1e-3");
  return value;
}

std::int64_t parse_integer(const OptionText& text) {
  std::int64_t value = 0;
  if (!parse(text.value, value)) refuse(text, "a whole number");
  return value;
}

std::uint64_t parse_seed(const OptionText& text) {
  std::uint64_t value = 0;
  if (!parse(text.value, value)) refuse(text, "a whole number >= 0 and below 2^64");
  return value;
}

bool parse_boolean(const OptionText& text) {
  if (text.value == "true") return true;
  if (text.value == "false") return false;
  refuse(text, "true or false");
}

std::size_t parse_choice(const OptionText& text, std::span<const std::string> names) {
  const auto found = std::ranges::find(names, text.value);
  if (found == names.end()) {
    refuse(text, join_names(names),
           fmt::format("; did you mean '{}'?", nearest(text.value, names)));
  }
  return static_cast<std::size_t>(found - names.begin());
}

void parse_numbers(const OptionText& text, std::span<double> out) {
  std::vector<double> values;
  std::string_view rest = text.value;
  while (true) {
    const std::size_t comma = rest.find(',');
    double value = 0;
    if (!parse(rest.substr(0, comma), value)) {
      refuse(text, fmt::format("{} comma-separated numbers", out.size()));
    }
    values.push_back(value);
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  if (values.size() != out.size()) {
    refuse(text, fmt::format("{} comma-separated numbers", out.size()));
  }
  std::ranges::copy(values, out.begin());
}

bool in_range(double value, const OptionRange& range) {
  const bool above = range.low_open ? value > range.low : value >= range.low;
  const bool below = range.high_open ? value < range.high : value <= range.high;
  return std::abs(value) <= FLT_MAX && above && below && !vanishes(value, range);
}

std::string expectation(double value, const OptionRange& range, std::string_view noun) {
  const std::string wanted = bounds(range);
  if (!std::isfinite(value) && noun == "a number") return "a finite number " + wanted;
  if (std::abs(value) > FLT_MAX && !(value < range.low)) {
    return fmt::format("{} {} of at most 3.4e38, which fp32 can hold", noun, wanted);
  }
  if (value > 0 && vanishes(value, range)) {
    return fmt::format("{} {} of at least 1.4e-45, which fp32 can hold", noun, wanted);
  }
  return fmt::format("{} {}", noun, wanted);
}

void check_range(const OptionText& text, double value, const OptionRange& range,
                 std::string_view noun) {
  if (!in_range(value, range)) refuse(text, expectation(value, range, noun));
}

void throw_unknown_option(std::string_view optimizer, std::string_view key,
                          std::span<const std::string> keys) {
  throw Error(ErrorKind::invalid_argument, optimizer,
              fmt::format("unknown option '{}'; did you mean '{}'? options: {}", key,
                          nearest(key, keys), fmt::join(keys, ", ")));
}

std::string print_number(double value) { return fmt::format("{}", value); }

std::string print_numbers(std::span<const double> values) {
  return fmt::format("{}", fmt::join(values, ","));
}

std::string join_names(std::span<const std::string> names) {
  std::string out;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (i > 0) out += i + 1 == names.size() ? " or " : ", ";
    out += names[i];
  }
  return out;
}

}  // namespace rode
