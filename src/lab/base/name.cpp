// SPDX-License-Identifier: Apache-2.0
// The one rule for names that become paths.
#include "lab/base/name.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/file_io.h"

namespace rode::lab {
namespace {

constexpr std::size_t kLongest = 100;  // with a suffix it still fits the 255 bytes of a file's name

// Not std::isalnum, which depends on the locale.
bool is_plain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

}  // namespace

bool is_name(std::string_view text) {
  return !text.empty() && text.size() <= kLongest && is_plain(text.front()) &&
         std::all_of(text.begin(), text.end(),
                     [](char c) { return is_plain(c) || c == '.' || c == '-' || c == '+'; });
}

void require_name(std::string_view text, std::string_view operation, std::string_view what) {
  if (is_name(text)) return;
  throw Error(ErrorKind::invalid_argument, operation,
              fmt::format("{} name '{}'; expected {}", what, printable(text), kNameRule));
}

}  // namespace rode::lab
