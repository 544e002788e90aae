// SPDX-License-Identifier: Apache-2.0
// The manifest of datasets: TOML to the typed entries.
#include <algorithm>

#include <fmt/format.h>

#include "lab/base/embedded.h"
#include "lab/base/name.h"
#include "lab/base/toml_table.h"
#include "lab/fetch/dataset.h"
#include "rode/error.h"

namespace rode::lab {
namespace {

constexpr std::string_view kDatasets = "datasets";
constexpr std::string_view kManifest = "src/lab/fetch/datasets.toml";

DatasetFile parse_file(TomlTable& table) {
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
  table.finish();
  return file;
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
  for (TomlTable& file : table.tables("files")) dataset.files.push_back(parse_file(file));
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
