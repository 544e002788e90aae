// SPDX-License-Identifier: Apache-2.0
// A task written as the file that would be read as it.
#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lab/task/task.h"

namespace rode::lab {
namespace {

using Json = nlohmann::ordered_json;

std::string toml_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20 || byte == 0x7F) {
      out += fmt::format("\\u{:04x}", byte);
    } else {
      out += c;
    }
  }
  return out + '"';
}

// How the parser reads a TOML number or boolean; empty where the text is neither.
std::string as_read(std::string_view text) {
  if (text == "true" || text == "false") return std::string(text);
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (json.is_number_integer()) return fmt::format("{}", json.get<std::int64_t>());
  return json.is_number_float() ? fmt::format("{}", json.get<double>()) : std::string();
}

// An option's text: as a number, boolean or list where that is read as the same text, else quoted.
std::string option_toml(const std::string& text) {
  if (!text.empty() && as_read(text) == text) return text;
  std::string list;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    const std::string item = text.substr(at, end - at);
    if (item.empty() || as_read(item) != item) return toml_string(text);
    list += (list.empty() ? "" : ", ") + item;
    at = end + 1;
  }
  return "[" + list + "]";
}

std::string section(std::string_view name, const Json& values) {
  std::string out = fmt::format("\n[{}]\n", name);
  for (const auto& [key, value] : values.items()) {
    out += fmt::format("{} = {}\n", key,
                       value.is_string() ? toml_string(value.get<std::string>()) : value.dump());
  }
  return out;
}

// A key of TOML needs quotes where a name has '.' or '+'.
std::string key_of(const std::string& name) {
  return name.find_first_of(".+") == std::string::npos ? name : toml_string(name);
}

}  // namespace

std::string to_toml(const Task& task) {
  const Json json = to_json(task);
  std::string out = fmt::format("title = {}\n", toml_string(task.title));
  for (const char* name : {"model", "data", "train"}) out += section(name, json[name]);
  for (const OptimizerSpec& spec : task.optimizers) {
    out += fmt::format("\n[optimizers.{}]\n", key_of(spec.name));
    if (spec.optimizer != spec.name)
      out += fmt::format("optimizer = {}\n", toml_string(spec.optimizer));
    for (const auto& [key, value] : spec.settings) {
      out += fmt::format("{} = {}\n", key, option_toml(value));
    }
    out += fmt::format("source = {}\n", toml_string(spec.source));
  }
  for (const ScaleSpec& scale : task.scales) {
    out += fmt::format("\n[scale.{}]\n", key_of(scale.name));
    for (const auto& [key, value] : scale.settings) {
      out += fmt::format("{} = {}\n", key, option_toml(value));
    }
  }
  if (!json.contains("sweep")) return out;
  Json sweep = json["sweep"];
  const Json spaces = sweep["spaces"];
  sweep.erase("spaces");
  out += section("sweep", sweep);
  for (const auto& [name, space] : spaces.items()) {
    out += section("sweep.spaces." + key_of(name), space);
  }
  return out;
}

}  // namespace rode::lab
