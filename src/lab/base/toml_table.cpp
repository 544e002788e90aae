// SPDX-License-Identifier: Apache-2.0
// Strict reading of TOML: messages with line, key and the nearest valid key.
#include "lab/base/toml_table.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/file_io.h"
#include "core/nearest.h"
#include "lab/base/name.h"

namespace rode::lab {
namespace {

std::string value_text(const toml::node& node) {
  if (const auto value = node.value_exact<std::string>()) return *value;
  if (const auto value = node.value_exact<bool>()) return *value ? "true" : "false";
  if (const auto value = node.value_exact<std::int64_t>()) return std::to_string(*value);
  if (const auto value = node.value_exact<double>()) return fmt::format("{}", *value);
  std::string text;
  if (const toml::array* list = node.as_array()) {
    for (const toml::node& item : *list) {
      if (!text.empty()) text += ',';
      text += value_text(item);
    }
  }
  return text;
}

// For an error: as it stands in the file, so that "3" and 3 look different.
std::string shown(const toml::node& node) {
  if (const auto value = node.value_exact<std::string>()) return '"' + printable(*value) + '"';
  if (const toml::array* list = node.as_array()) {
    std::vector<std::string> items;
    for (const toml::node& item : *list) items.push_back(shown(item));
    return printable(fmt::format("[{}]", fmt::join(items, ", ")));
  }
  if (node.is_table()) return "a table";
  const std::string text = value_text(node);
  return text.empty() ? "a date or time" : text;
}

// Where the string ends that begins at `at`; one that is not closed ends with its line, or with the
// text where it may have several.
std::size_t string_end(std::string_view text, std::size_t at) {
  const char quote = text[at];
  const std::string fence(3, quote);
  const bool lines = text.substr(at, 3) == fence;
  for (at += lines ? 3 : 1; at < text.size(); ++at) {
    if (text[at] == '\\' && quote == '"') {
      ++at;
    } else if (lines && text.substr(at, 3) == fence) {
      // Up to two quotes before the closing three belong to the string.
      for (at += 3; at < text.size() && text[at] == quote; ++at) {
      }
      return at;
    } else if (!lines && (text[at] == quote || text[at] == '\n')) {
      return at + (text[at] == quote ? 1 : 0);
    }
  }
  return text.size();
}

// Where the bare word that begins at `at` ends. toml++ looks for the end of a value at white space,
// a comma, a bracket or a comment, past quotes; of a key, the first on its line, '=' is the end.
std::size_t word_end(std::string_view text, std::size_t at, bool key) {
  return std::min(text.find_first_of(key ? " \t\r\n,]}#=" : " \t\r\n,]}#", at), text.size());
}

// Outside of strings and comments TOML is ASCII. toml++ 3.3 does not always get as far as to say
// so: for some letters there its behaviour is undefined.
void require_ascii(std::string_view text, std::string_view source, std::string_view operation) {
  constexpr std::string_view kBetween = " \t\r\n,]}=[{";
  bool key = true;
  for (std::size_t at = text.starts_with("\xEF\xBB\xBF") ? 3 : 0; at < text.size();) {
    const char c = text[at];
    if (c == '\n') key = true;
    if (c == '=') key = false;
    if (c == '"' || c == '\'') {
      at = string_end(text, at);
    } else if (c == '#') {
      at = std::min(text.find('\n', at), text.size());
    } else if (kBetween.find(c) != std::string_view::npos) {
      ++at;
    } else {
      const std::size_t end = word_end(text, at, key);
      const auto plain = [](char letter) { return static_cast<unsigned char>(letter) < 0x80; };
      if (!std::ranges::all_of(text.substr(at, end - at), plain)) {
        const auto line =
            1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n');
        throw file_error(operation, source,
                         fmt::format("line {}: a non-ASCII character outside quotes; "
                                     "expected TOML; put the text in quotes, with spaces around "
                                     "'='",
                                     line));
      }
      at = end;
    }
  }
}

}  // namespace

toml::table parse_toml(std::string_view text, std::string_view source, std::string_view operation) {
  require_ascii(text, source, operation);
  try {
    return toml::parse(text, source);
  } catch (const toml::parse_error& error) {
    throw file_error(operation, source,
                     fmt::format("line {}: {}; expected TOML; correct the line",
                                 error.source().begin.line, error.description()));
  }
}

namespace {

// A value that came from elsewhere has no line.
std::string at_line(toml::source_index line) {
  return line == 0 ? std::string() : fmt::format("line {}: ", line);
}

}  // namespace

std::string TomlTable::place() const {
  return path_.empty() ? " at the top" : fmt::format(" in [{}]", printable(path_));
}

void TomlTable::fail(std::string_view key, std::string_view what) const {
  const toml::node* node = key.empty() ? nullptr : table_->get(key);
  const auto line = node != nullptr ? node->source().begin.line : table_->source().begin.line;
  throw file_error(operation_, source_,
                   fmt::format("{}{}{}", at_line(line),
                               key.empty() ? "" : fmt::format("'{}' ", printable(key)), what));
}

void TomlTable::throw_missing(std::string_view key) const {
  constexpr std::size_t kSlips = 2;
  std::vector<std::string> others = keys();
  std::erase_if(others, [&](const std::string& other) { return known_.contains(other); });
  if (const std::string meant = nearest(key, others, kSlips); !meant.empty()) {
    fail(meant,
         fmt::format("is not a key{}, and '{}' is missing; did you mean that?", place(), key));
  }
  fail("", fmt::format("'{}' is missing{}; add it", key, place()));
}

void TomlTable::throw_type(std::string_view key, std::string_view expected) const {
  fail(key, fmt::format("is {}{}; expected {}", shown(*table_->get(key)), place(), expected));
}

const toml::node* TomlTable::find(std::string_view key) {
  known_.emplace(key);
  return table_->get(key);
}

bool TomlTable::has(std::string_view key) { return find(key) != nullptr; }

std::optional<std::string> TomlTable::text(std::string_view key) {
  const toml::node* node = find(key);
  if (node == nullptr) return std::nullopt;
  if (auto value = node->value_exact<std::string>()) return value;
  throw_type(key, "text in quotes");
}

std::optional<std::string> TomlTable::name(std::string_view key) {
  auto value = text(key);
  if (value && !is_name(*value)) {
    fail(key, fmt::format("is '{}'{}; expected {}", printable(*value), place(), kNameRule));
  }
  return value;
}

std::optional<std::string> TomlTable::word(std::string_view key,
                                           const std::vector<std::string>& allowed) {
  auto value = text(key);
  if (!value) return value;
  for (const std::string& candidate : allowed) {
    if (*value == candidate) return value;
  }
  fail(key, fmt::format("is '{}'{}; did you mean '{}'? expected {}", printable(*value), place(),
                        nearest(*value, allowed), fmt::join(allowed, ", ")));
}

std::optional<std::int64_t> TomlTable::whole(std::string_view key, std::int64_t least,
                                             std::int64_t most) {
  const toml::node* node = find(key);
  if (node == nullptr) return std::nullopt;
  const auto value = node->value_exact<std::int64_t>();
  if (value && *value >= least && *value <= most) return value;
  throw_type(key, most == std::numeric_limits<std::int64_t>::max()
                      ? fmt::format("a whole number of at least {}", least)
                      : fmt::format("a whole number from {} to {}", least, most));
}

std::optional<double> TomlTable::number(std::string_view key, double least, double most) {
  const toml::node* node = find(key);
  if (node == nullptr) return std::nullopt;
  const auto value = node->is_number() ? node->value<double>() : std::nullopt;
  if (value && *value >= least && *value <= most) return value;
  throw_type(key, fmt::format("a number from {} to {}", least, most));
}

std::optional<bool> TomlTable::truth(std::string_view key) {
  const toml::node* node = find(key);
  if (node == nullptr) return std::nullopt;
  if (auto value = node->value_exact<bool>()) return value;
  throw_type(key, "true or false");
}

std::optional<TomlTable> TomlTable::table(std::string_view key) {
  const toml::node* node = find(key);
  if (node == nullptr) return std::nullopt;
  if (!node->is_table()) throw_type(key, "a table");
  std::string path = path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
  return TomlTable(*node->as_table(), source_, std::move(path), operation_);
}

std::vector<TomlTable> TomlTable::tables(std::string_view key) {
  const toml::node* node = find(key);
  if (node == nullptr) return {};
  if (!node->is_array_of_tables()) throw_type(key, "tables, [[...]]");
  std::vector<TomlTable> found;
  for (const toml::node& item : *node->as_array()) {
    found.emplace_back(*item.as_table(), source_, fmt::format("{}.{}", path_, key), operation_);
  }
  return found;
}

std::vector<std::pair<std::string, std::string>> TomlTable::rest_as_text() {
  std::vector<std::pair<std::string, std::string>> found;
  for (const std::string& key : keys()) {
    if (!known_.emplace(key).second) continue;
    const toml::node& node = *table_->get(key);
    if (node.is_table()) fail(key, "is a table; expected a value");
    found.emplace_back(key, value_text(node));
  }
  return found;
}

std::vector<std::string> TomlTable::keys() const {
  // In the order of the file: toml++ keeps them sorted by name.
  std::vector<std::pair<toml::source_position, std::string>> places;
  for (const auto& [key, node] : *table_) places.emplace_back(key.source().begin, key.str());
  std::sort(places.begin(), places.end());
  std::vector<std::string> names;
  for (auto& [position, name] : places) names.push_back(std::move(name));
  return names;
}

void TomlTable::finish() const {
  const std::vector<std::string> known(known_.begin(), known_.end());
  for (const std::string& key : keys()) {
    if (known_.contains(key)) continue;
    throw file_error(operation_, source_,
                     fmt::format("{}unknown key '{}'{}; did you mean '{}'?",
                                 at_line(table_->find(key)->first.source().begin.line),
                                 printable(key), place(), nearest(key, known)));
  }
}

}  // namespace rode::lab
