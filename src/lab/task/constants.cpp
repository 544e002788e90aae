// SPDX-License-Identifier: Apache-2.0
// Shared constants, from the files inside the program.
#include "lab/task/constants.h"

#include <algorithm>
#include <map>

#include "lab/base/embedded.h"
#include "lab/base/toml_table.h"

namespace rode::lab {
namespace {

constexpr std::string_view kFolder = "src/lab/task/constants/";
constexpr std::string_view kExtension = ".toml";

using ConstantSet = std::map<std::string, Settings, std::less<>>;  // by the table's name

std::map<std::string, ConstantSet, std::less<>> read_sets() {
  std::map<std::string, ConstantSet, std::less<>> sets;
  for (const EmbeddedFile& file : embedded_files()) {
    if (!file.name.starts_with(kFolder)) continue;
    const toml::table parsed = parse_toml(file.text, file.name, "task");
    TomlTable root(parsed, std::string(file.name), "", "task");
    const auto name =
        file.name.substr(kFolder.size(), file.name.size() - kFolder.size() - kExtension.size());
    ConstantSet& set = sets[std::string(name)];
    for (const std::string& key : root.keys()) {
      set[key] = root.required(key, root.table(key)).rest_as_text();
    }
  }
  return sets;
}

const std::map<std::string, ConstantSet, std::less<>>& all_sets() {
  static const auto sets = read_sets();
  return sets;
}

}  // namespace

std::vector<std::string> constant_sets() {
  std::vector<std::string> names;
  for (const auto& [name, set] : all_sets()) names.push_back(name);
  return names;
}

Settings constants_of(std::string_view set, std::string_view optimizer) {
  const auto found = all_sets().find(set);
  if (found == all_sets().end()) return {};
  Settings settings;
  const std::string family(Method::by_name(optimizer).family());
  for (const std::string& table : {family, std::string(optimizer)}) {
    const auto entry = found->second.find(table);
    if (entry != found->second.end()) merge_settings(settings, entry->second);
  }
  return settings;
}

void merge_settings(Settings& into, const Settings& from) {
  for (const auto& [key, value] : from) {
    const auto same = [&](const auto& entry) { return entry.first == key; };
    const auto found = std::find_if(into.begin(), into.end(), same);
    if (found == into.end()) {
      into.emplace_back(key, value);
    } else {
      found->second = value;
    }
  }
}

}  // namespace rode::lab
