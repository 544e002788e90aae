// SPDX-License-Identifier: Apache-2.0
// Parses options; every error names the key and the value.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "reference/reference.h"
#include "rode/error.h"

namespace rode::reference {

[[noreturn]] inline void refuse(const std::string& key, const std::string& value,
                                const std::string& expectation) {
  throw Error(ErrorKind::invalid_argument, "reference",
              "option '" + key + "' is '" + value + "'; expected " + expectation);
}

inline const std::string& text(const Settings& settings, const std::string& key) {
  const auto found = settings.find(key);
  if (found == settings.end())
    throw Error(ErrorKind::invalid_argument, "reference",
                "option '" + key + "' is missing; the reference has no defaults; set it");
  return found->second;
}

namespace detail {

template <typename Value>
Value parse(const std::string& key, std::string_view word, const char* expectation) {
  Value value{};
  const char* end = word.data() + word.size();
  const auto result = std::from_chars(word.data(), end, value);
  if (result.ec != std::errc() || result.ptr != end) refuse(key, std::string(word), expectation);
  return value;
}

}  // namespace detail

inline double number(const Settings& settings, const std::string& key) {
  return detail::parse<double>(key, text(settings, key), "a number");
}

// For the constants that only some callers expose as options.
inline double number_or(const Settings& settings, const std::string& key, double otherwise) {
  return settings.contains(key) ? number(settings, key) : otherwise;
}

inline std::int64_t integer(const Settings& settings, const std::string& key, std::int64_t least) {
  const auto value = detail::parse<std::int64_t>(key, text(settings, key), "an integer");
  if (value < least) refuse(key, text(settings, key), "at least " + std::to_string(least));
  return value;
}

inline bool flag(const Settings& settings, const std::string& key) {
  const std::string& value = text(settings, key);
  if (value != "true" && value != "false") refuse(key, value, "true or false");
  return value == "true";
}

inline bool flag_or(const Settings& settings, const std::string& key, bool otherwise) {
  return settings.contains(key) ? flag(settings, key) : otherwise;
}

inline std::string choice(const Settings& settings, const std::string& key,
                          std::initializer_list<std::string_view> allowed) {
  const std::string& value = text(settings, key);
  if (std::find(allowed.begin(), allowed.end(), value) == allowed.end()) {
    std::string list;
    for (std::string_view word : allowed) list += (list.empty() ? "" : ", ") + std::string(word);
    refuse(key, value, "one of " + list);
  }
  return value;
}

// Exactly `count` comma-separated numbers.
inline std::vector<double> numbers(const Settings& settings, const std::string& key,
                                   std::size_t count) {
  const std::string& whole = text(settings, key);
  std::vector<double> values;
  std::string_view rest = whole;
  for (bool more = true; more;) {
    const std::size_t comma = rest.find(',');
    more = comma != std::string_view::npos;
    std::string_view word = rest.substr(0, comma);
    while (!word.empty() && word.front() == ' ') word.remove_prefix(1);
    while (!word.empty() && word.back() == ' ') word.remove_suffix(1);
    values.push_back(detail::parse<double>(key, word, "comma-separated numbers"));
    if (more) rest.remove_prefix(comma + 1);
  }
  if (values.size() != count) refuse(key, whole, std::to_string(count) + " numbers");
  return values;
}

}  // namespace rode::reference
