// SPDX-License-Identifier: Apache-2.0
// The manifest of datasets: TOML to the typed entries.
#include <algorithm>
#include <charconv>
#include <utility>

#include <fmt/format.h>

#include "lab/base/embedded.h"
#include "lab/base/name.h"
#include "lab/base/toml_table.h"
#include "lab/fetch/dataset.h"

namespace rode::lab {
namespace {

constexpr std::string_view kDatasets = "datasets";
constexpr std::string_view kManifest = "src/lab/fetch/datasets.toml";

// "part_000001.bin" and "part_000003.bin": the names from the first to the last, by the digits
// before the extension.
std::vector<std::string> numbered(TomlTable& table, const std::string& first,
                                  const std::string& last) {
  constexpr std::size_t kDigits = 6;
  constexpr int kMostFiles = 10'000;
  const std::size_t dot = first.rfind('.');
  int from = -1;
  int to = -1;
  if (dot != std::string::npos && dot >= kDigits && last.size() == first.size() &&
      last.substr(0, dot - kDigits) == first.substr(0, dot - kDigits) &&
      last.substr(dot) == first.substr(dot)) {
    const auto number = [&](const std::string& name, int& value) {
      const char* const begin = name.data() + dot - kDigits;
      const auto [end, failed] = std::from_chars(begin, begin + kDigits, value);
      return failed == std::errc() && end == begin + kDigits;
    };
    if (!number(first, from) || !number(last, to)) from = to = -1;
  }
  if (from < 0 || to < from || to - from >= kMostFiles) {
    table.fail("last", fmt::format("is '{}' with name '{}'; expected the same name with a larger "
                                   "number of six digits before the extension",
                                   last, first));
  }
  std::vector<std::string> names;
  for (int i = from; i <= to; ++i) {
    names.push_back(fmt::format("{}{:06}{}", first.substr(0, dot - kDigits), i, first.substr(dot)));
  }
  return names;
}

// One file, or several of the same kind where `last` is there.
std::vector<DatasetFile> parse_files(TomlTable& table) {
  DatasetFile file;
  file.name = table.required("name", table.name("name"));
  if (const auto size = table.whole("size", 1)) file.size = static_cast<std::uint64_t>(*size);
  file.sha256 = table.text("sha256").value_or("");
  const bool hex = std::all_of(file.sha256.begin(), file.sha256.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
  });
  if (!file.sha256.empty() && (file.sha256.size() != 64 || !hex)) {
    table.fail("sha256", "is not 64 lower-case hexadecimal digits");
  }
  for (TomlTable& member : table.tables("unpack")) {
    const std::string from = member.required("from", member.text("from"));
    file.unpack[from] = member.required("to", member.name("to"));
    member.finish();
  }
  const auto last = table.name("last");
  if (last && (!file.sha256.empty() || file.size || !file.unpack.empty())) {
    table.fail("last",
               "cannot be combined with size, sha256 or unpack, which differ from file to file");
  }
  table.finish();
  if (!last) return {file};
  std::vector<DatasetFile> files;
  for (const std::string& name : numbered(table, file.name, *last)) {
    files.push_back({.name = name, .size = {}, .sha256 = {}, .unpack = {}});
  }
  return files;
}

Dataset parse_dataset(TomlTable& table, const std::string& name) {
  Dataset dataset;
  dataset.name = name;
  dataset.title = table.required("title", table.text("title"));
  dataset.licence = table.required("licence", table.text("licence"));
  dataset.url = table.required("url", table.text("url"));
  dataset.next = table.text("next").value_or("");
  if (auto tokens = table.table("tokens")) {
    TokenInfo info;
    info.tokenizer = tokens->required("tokenizer", tokens->text("tokenizer"));
    info.vocab_size = tokens->required("vocab_size", tokens->whole("vocab_size", 1, kMaxVocabSize));
    info.end_of_text =
        tokens->required("end_of_text", tokens->whole("end_of_text", 0, kMaxVocabSize - 1));
    tokens->finish();
    dataset.tokens = info;
  }
  for (TomlTable& entry : table.tables("files")) {
    for (DatasetFile& file : parse_files(entry)) dataset.files.push_back(std::move(file));
  }
  if (dataset.files.empty()) table.fail("", fmt::format("[{}] has no files", name));
  table.finish();
  return dataset;
}

}  // namespace

std::map<std::string, Dataset> parse_manifest(std::string_view text, std::string_view source) {
  const toml::table parsed = parse_toml(text, source, kDatasets);
  TomlTable root(parsed, std::string(source), "", std::string(kDatasets));
  std::map<std::string, Dataset> datasets;
  for (const std::string& name : root.keys()) {
    if (!is_name(name)) {
      root.fail(name, fmt::format("is not a valid name of a dataset; expected {}", kNameRule));
    }
    auto table = root.required(name, root.table(name));
    datasets[name] = parse_dataset(table, name);
  }
  return datasets;
}

std::map<std::string, Dataset> builtin_manifest() {
  for (const EmbeddedFile& file : embedded_files()) {
    if (file.name == kManifest) return parse_manifest(file.text, file.name);
  }
  return {};
}

}  // namespace rode::lab
