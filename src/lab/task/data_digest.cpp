// SPDX-License-Identifier: Apache-2.0
// Digests of a task's data.
#include "lab/task/data_digest.h"

#include <algorithm>
#include <string>
#include <system_error>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lab/base/sha256.h"
#include "lab/text/token_folder.h"

namespace rode::lab {
namespace {

namespace fs = std::filesystem;

std::string of_text(const std::string& text) {
  Sha256 hash;
  hash.update(std::as_bytes(std::span(text.data(), text.size())));
  return hash.hex();
}

// "name size", a line per file, in the order of the names.
std::string of_names(const fs::path& root, std::vector<fs::path> files) {
  std::sort(files.begin(), files.end());
  std::string text;
  for (const fs::path& file : files) {
    std::error_code failed;
    const auto size = fs::file_size(file, failed);
    text +=
        fmt::format("{} {}\n", file.lexically_relative(root).generic_string(), failed ? 0 : size);
  }
  return of_text(text);
}

std::string of_tokens(const fs::path& folder, const std::string& split) {
  std::string digests;
  for (const std::string& name : {std::string(kTokenInfo), std::string(kShardChecksums)}) {
    if (fs::exists(folder / name)) digests += sha256_of_file(folder / name);
  }
  return digests.empty() ? of_names(folder, shard_paths(folder, split)) : of_text(digests);
}

std::string of_images(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code failed;
  for (const auto& entry : fs::recursive_directory_iterator(folder, failed)) {
    if (entry.is_regular_file(failed)) files.push_back(entry.path());
  }
  return of_names(folder, std::move(files));
}

}  // namespace

nlohmann::ordered_json digest_data(const Task& task, const fs::path& data_folder) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  const DataSpec& data = task.data;
  if (data.path.empty()) return json;
  const auto digest = [&](const std::string& path, const std::string& split) {
    const fs::path folder = data_folder / path;
    if (data.kind == "tokens") return of_tokens(folder, split);
    if (data.kind == "cifar-100") return sha256_of_file(folder / (split + ".bin"));
    return of_images(folder / split);
  };
  json["train"] = digest(data.path, data.train);
  json["valid"] = digest(data.valid_path.empty() ? data.path : data.valid_path, data.valid);
  return json;
}

}  // namespace rode::lab
