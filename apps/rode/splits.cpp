// SPDX-License-Identifier: Apache-2.0
// The option `splits`, read apart from the engine: which blocks a fused matrix has.
#include "splits.h"

#include <algorithm>
#include <charconv>
#include <numeric>
#include <string>

#include <fmt/format.h>

#include "rode/error.h"
#include "rode/routing.h"

namespace rode::cli {
namespace {

using Sizes = std::vector<std::int64_t>;

[[noreturn]] void refuse(std::string_view item, std::string_view why) {
  throw Error(ErrorKind::invalid_argument, "splits",
              fmt::format("'{}' {}; write PATTERN=COUNT or PATTERN=a+b+c", item, why));
}

// "768+256+256" as numbers.
Sizes parse_sizes(std::string_view item, std::string_view text) {
  Sizes sizes;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t plus = std::min(text.find('+', at), text.size());
    std::int64_t value = 0;
    const char* last = text.data() + plus;
    const auto [end, error] = std::from_chars(text.data() + at, last, value);
    if (error != std::errc() || end != last || value < 1) refuse(item, "has no positive size");
    sizes.push_back(value);
    at = plus + 1;
  }
  return sizes;
}

Sizes fit(std::string_view item, Sizes sizes, const Parameter& parameter) {
  const Shape& shape = parameter.value.shape;
  const std::int64_t fan_out =
      parameter.layout == Layout::in_out ? shape[shape.rank() - 1] : shape[0];
  if (sizes.size() == 1) {  // a count of equal parts
    const std::int64_t count = sizes.front();
    if (fan_out % count != 0) {
      refuse(item, fmt::format("does not divide the fan-out {} of parameter '{}'", fan_out,
                               parameter.name));
    }
    return Sizes(static_cast<std::size_t>(count), fan_out / count);
  }
  if (std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}) != fan_out) {
    refuse(item, fmt::format("does not add up to the fan-out {} of parameter '{}'", fan_out,
                             parameter.name));
  }
  return sizes;
}

struct Item {
  std::string_view text;  // as written
  std::string_view pattern;
  std::string_view sizes;
};

std::vector<Item> items_of(std::string_view splits) {
  std::vector<Item> items;
  if (splits.empty()) return items;
  for (std::size_t at = 0; at <= splits.size();) {
    const std::size_t comma = std::min(splits.find(',', at), splits.size());
    const std::string_view text = splits.substr(at, comma - at);
    const std::size_t cut = text.rfind('=');
    if (cut == std::string_view::npos || cut == 0) refuse(text, "has no pattern");
    items.push_back({text, text.substr(0, cut), text.substr(cut + 1)});
    at = comma + 1;
  }
  return items;
}

}  // namespace

Sizes blocks_of(std::string_view splits, const Parameter& parameter) {
  if (parameter.value.shape.rank() < 2) return {};
  for (const Item& item : items_of(splits)) {
    if (glob_match(item.pattern, parameter.name)) {
      return fit(item.text, parse_sizes(item.text, item.sizes), parameter);
    }
  }
  return {};
}

void check_splits(std::string_view splits, std::span<const Parameter> parameters) {
  for (const Item& item : items_of(splits)) {
    const bool matched = std::ranges::any_of(parameters, [&](const Parameter& parameter) {
      return glob_match(item.pattern, parameter.name);
    });
    if (!matched) refuse(item.text, "matches no parameter");
  }
}

}  // namespace rode::cli
