// SPDX-License-Identifier: Apache-2.0
// Getting a dataset: download, check, unpack, record.
#include <system_error>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/file_io.h"
#include "lab/base/sealed_json.h"
#include "lab/base/sha256.h"
#include "lab/fetch/dataset.h"
#include "lab/text/decompress.h"

namespace rode::lab {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kGetData = "data get";
constexpr std::string_view kRecord = "dataset.json";

std::vector<fs::path> results_of(const Dataset& dataset, const fs::path& folder) {
  std::vector<fs::path> paths;
  for (const DatasetFile& file : dataset.files) {
    if (file.unpack.empty()) paths.push_back(folder / file.name);
    for (const auto& [from, to] : file.unpack) paths.push_back(folder / to);
  }
  return paths;
}

bool complete(const Dataset& dataset, const fs::path& folder) {
  if (!fs::exists(folder / kRecord)) return false;
  for (const fs::path& path : results_of(dataset, folder)) {
    if (!fs::exists(path)) return false;
  }
  return true;
}

// The checksum of the download, after comparing size and checksum with the manifest's. What does
// not agree is removed: resuming it would never end well.
std::string verify(const DatasetFile& file, const fs::path& part) {
  const auto refuse = [&](const std::string& what) {
    fs::remove(part);
    return file_error(kGetData, file.name, what + "; it was removed; try again, or another mirror");
  };
  const std::uint64_t size = fs::file_size(part);
  if (file.size && size != *file.size) {
    throw refuse(fmt::format("expected {} bytes, received {}", *file.size, size));
  }
  std::string sha256 = sha256_of_file(part);
  if (!file.sha256.empty() && sha256 != file.sha256) {
    throw refuse(fmt::format("its sha256 is {}; expected {}", sha256, file.sha256));
  }
  return sha256;
}

std::string url_of(const Dataset& dataset, const DatasetFile& file, const std::string& mirror) {
  std::string base = mirror.empty() ? dataset.url : mirror;
  while (base.ends_with('/')) base.pop_back();
  return mirror.empty() ? fmt::format("{}/{}", base, file.name)
                        : fmt::format("{}/{}/{}", base, dataset.name, file.name);
}

void record_tokens(const Dataset& dataset, TokenInfo info, const fs::path& folder) {
  std::map<std::string, BlockHashes> checksums;
  for (const DatasetFile& file : dataset.files) {
    const TokenShard shard(folder / file.name);
    BlockHasher hasher;
    hasher.add(FileMapping(folder / file.name, kGetData).bytes());
    checksums[file.name] = hasher.finish();
    SplitInfo& split = info.splits[split_of(file.name)];
    split.checksums = true;
    ++split.shards;
    split.tokens += static_cast<std::int64_t>(shard.tokens().size());
  }
  write_shard_checksums(folder, checksums);
  write_token_info(folder, info);
}

}  // namespace

FetchResult fetch_dataset(const Dataset& dataset, const fs::path& folder,
                          const FetchOptions& options) {
  FetchResult result;
  if (complete(dataset, folder)) {
    result.already_there = true;
    return result;
  }
  std::error_code failed;
  fs::create_directories(folder, failed);
  if (failed) {
    throw file_error(kGetData, folder.string(),
                     fmt::format("the folder cannot be created ({}); choose another with --out",
                                 failed.message()));
  }
  const auto report = [&](const std::string& line) {
    if (options.report) options.report(line);
  };
  nlohmann::ordered_json files = nlohmann::ordered_json::object();
  for (const DatasetFile& file : dataset.files) {
    // A part that is already whole is checked as it is: asking for more would be an error.
    const fs::path part = folder / (file.name + ".part");
    const std::string url = url_of(dataset, file, options.mirror);
    const bool whole = file.size && fs::exists(part) && fs::file_size(part) == *file.size;
    // Files that were finished by an interrupted run stay.
    const bool finished = file.unpack.empty() && fs::exists(folder / file.name);
    if (!whole && !finished) {
      report(fmt::format("downloading {}", url));
      download(url, part, [&](std::uint64_t now, std::uint64_t total) {
        if (options.progress) options.progress(file.name, now, total);
      });
    }
    const std::string sha256 = verify(file, finished ? folder / file.name : part);
    if (file.sha256.empty()) {
      report(fmt::format("{}: sha256 {} (not verified: the manifest has none)", file.name, sha256));
      result.unverified.push_back(file.name);
    } else {
      report(fmt::format("{}: sha256 verified", file.name));
    }
    files[file.name] = {{"sha256", sha256}, {"verified", !file.sha256.empty()}};
    if (finished) continue;
    if (file.unpack.empty()) {
      fs::rename(part, folder / file.name);
      continue;
    }
    std::map<std::string, fs::path> members;
    for (const auto& [from, to] : file.unpack) members[from] = folder / to;
    report(fmt::format("unpacking {}", file.name));
    unpack(part, members);
    fs::remove(part);
  }
  if (dataset.tokens) record_tokens(dataset, *dataset.tokens, folder);
  const nlohmann::ordered_json record = {
      {"dataset", dataset.name}, {"licence", dataset.licence}, {"files", files}};
  const std::string text = sealed(record, 2) + "\n";
  AtomicFile out(folder / kRecord, kGetData);
  out.write(std::as_bytes(std::span(text)));
  out.commit();
  return result;
}

}  // namespace rode::lab
