// SPDX-License-Identifier: Apache-2.0
// Parses split patterns and divides fan-outs into blocks.
#include "optim/splits.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "optim/option_text.h"
#include "rode/error.h"
#include "rode/routing.h"

namespace rode {
namespace {

std::vector<std::string_view> cut(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

}  // namespace

Splits::Splits(std::string_view optimizer, std::string_view text) : optimizer_(optimizer) {
  if (text.empty()) return;
  for (const std::string_view part : cut(text, ',')) {
    // The last '=': a pattern may contain one, sizes may not.
    const std::size_t at = part.rfind('=');
    if (at == std::string_view::npos || at == 0 || at + 1 == part.size()) {
      throw Error(ErrorKind::invalid_argument, optimizer,
                  fmt::format("option 'splits': '{}'; expected PATTERN=COUNT or PATTERN=a+b+c, "
                              "such as '*.c_attn.weight=3'",
                              part));
    }
    Entry entry{std::string(part.substr(0, at)), {}};
    for (const std::string_view size : cut(part.substr(at + 1), '+')) {
      const OptionText value{optimizer, "splits", size};
      const std::int64_t extent = parse_integer(value);
      check_range(value, static_cast<double>(extent), between(1, 1e15));
      entry.sizes.push_back(extent);
    }
    entries_.push_back(std::move(entry));
  }
}

std::vector<std::int64_t> Splits::blocks(std::string_view name, std::int64_t fan_out) const {
  for (const Entry& entry : entries_) {
    if (!glob_match(entry.pattern, name)) continue;
    const std::vector<std::int64_t>& sizes = entry.sizes;
    if (sizes.size() == 1) {
      if (sizes[0] > fan_out || fan_out % sizes[0] != 0) {
        throw Error(ErrorKind::invalid_argument, optimizer_,
                    fmt::format("option 'splits': parameter '{}' has fan-out {}, which {} equal "
                                "blocks do not divide; choose a count that does, or sizes a+b+c",
                                name, fan_out, sizes[0]));
      }
      return std::vector<std::int64_t>(static_cast<std::size_t>(sizes[0]), fan_out / sizes[0]);
    }
    const std::int64_t sum = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
    if (sum != fan_out) {
      throw Error(ErrorKind::invalid_argument, optimizer_,
                  fmt::format("option 'splits': parameter '{}' has fan-out {}, but the blocks {} "
                              "add up to {}",
                              name, fan_out, fmt::join(sizes, "+"), sum));
    }
    return sizes;
  }
  return {fan_out};
}

std::string Splits::unmatched(const std::vector<std::string>& names) const {
  for (const Entry& entry : entries_) {
    const bool found = std::ranges::any_of(
        names, [&](const std::string& name) { return glob_match(entry.pattern, name); });
    if (!found) return entry.pattern;
  }
  return {};
}

}  // namespace rode
