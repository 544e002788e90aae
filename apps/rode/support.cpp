// SPDX-License-Identifier: Apache-2.0
// What several subcommands share: usage errors, settings, names, tables, memory.
#include "support.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <thread>

#include <fmt/format.h>

#include "rode/error.h"

namespace rode::cli {
namespace {

std::optional<double> number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return {};
  return value;
}

// Characters of UTF-8 text, which a terminal shows.
std::size_t shown_width(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
  }));
}

// Errors of the library about names, keys and values, reported as wrong usage.
template <class Make>
auto as_usage(Make&& make) {
  try {
    return make();
  } catch (const Error& error) {
    throw UsageError(error.what());
  }
}

}  // namespace

std::string on_terminal(std::string_view text) {
  std::string clean;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      clean += fmt::format("\\x{:02x}", byte);
    } else {
      clean += c;
    }
  }
  return clean;
}

std::pair<std::string, std::string> pattern_and_value(std::string_view text,
                                                      std::string_view flag) {
  const std::size_t cut = text.rfind('=');
  if (cut == std::string_view::npos || cut == 0) {
    throw UsageError(fmt::format("{} '{}' is not of the form PATTERN=VALUE", flag, text));
  }
  return {std::string(text.substr(0, cut)), std::string(text.substr(cut + 1))};
}

Settings parse_settings(const std::vector<std::string>& pairs) {
  Settings settings;
  for (const std::string& pair : pairs) {
    const std::size_t cut = pair.find('=');
    if (cut == std::string::npos || cut == 0) {
      throw UsageError(fmt::format("--set '{}' is not of the form key=value", pair));
    }
    const std::string key = pair.substr(0, cut);
    const std::string value = pair.substr(cut + 1);
    for (const auto& [other, before] : settings) {
      if (other != key) continue;
      throw UsageError(
          fmt::format("--set gives '{}' twice, as '{}' and as '{}'; expected each "
                      "option once; leave one out",
                      key, before, value));
    }
    settings.emplace_back(key, value);
  }
  return settings;
}

Method make_method(const std::string& name, const std::vector<std::string>& pairs) {
  const Settings settings = parse_settings(pairs);
  return as_usage([&] { return Method::by_name(name, settings); });
}

Route make_route(const std::string& text) {
  return as_usage([&] { return route_from_string(text); });
}

std::string option_value(const Method& method, std::string_view key) {
  for (const OptionInfo& option : method.options()) {
    if (option.key == key) return option.value;
  }
  return {};
}

Json typed_value(std::string_view text) {
  if (text == "true") return true;
  if (text == "false") return false;
  std::int64_t whole = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), whole);
  if (!text.empty() && error == std::errc() && end == text.data() + text.size()) return whole;
  if (const auto value = number(text)) return *value;
  if (text.find(',') == std::string_view::npos) return std::string(text);
  Json list = Json::array();
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    const auto value = number(text.substr(at, comma - at));
    if (!value) return std::string(text);  // a list of something else: its text
    list.push_back(*value);
    at = comma + 1;
  }
  return list;
}

std::string format_table(const std::vector<std::vector<std::string>>& rows, std::size_t left) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t c = 0; c < row.size(); ++c)
      widths[c] = std::max(widths[c], shown_width(row[c]));
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t c = 0; c < row.size(); ++c) {
      if (c > 0) line += "  ";
      line += c < left ? fmt::format("{:<{}}", row[c], widths[c])
                       : fmt::format("{:>{}}", row[c], widths[c]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

}  // namespace rode::cli
