// SPDX-License-Identifier: Apache-2.0
// Datasets that can be downloaded: what they consist of, and getting them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lab/text/token_folder.h"

namespace rode::lab {

struct DatasetFile {
  std::string name;                           // on the host
  std::optional<std::uint64_t> size;          // bytes
  std::string sha256;                         // empty: not known, the download is not verified
  std::map<std::string, std::string> unpack;  // archive member to file name; empty: kept as it is
};

struct Dataset {
  std::string name;
  std::string title;
  std::string licence;
  std::string url;  // of the folder that holds the files
  std::vector<DatasetFile> files;
  std::optional<TokenInfo> tokens;  // the files are token shards made by this tokenizer
  std::string next;                 // what to do with it
};

// A manifest's datasets by name; `source` names it in errors.
std::map<std::string, Dataset> parse_manifest(std::string_view text, std::string_view source);
// The manifest that is part of the build: datasets.toml.
std::map<std::string, Dataset> builtin_manifest();

struct FetchOptions {
  std::string mirror;  // files are at <mirror>/<dataset>/<file>; empty: the dataset's own host
  std::function<void(std::string_view)> report;  // one line per stage
  // Bytes so far and in total (0: unknown) of the file named.
  std::function<void(std::string_view, std::uint64_t, std::uint64_t)> progress;
};

struct FetchResult {
  bool already_there = false;
  std::vector<std::string> unverified;  // files without a checksum in the manifest
};

// Downloads into `folder`, checks and unpacks. A file appears under its name only when it is
// complete; an interrupted download resumes. Done once, it is recorded in <folder>/dataset.json.
FetchResult fetch_dataset(const Dataset& dataset, const std::filesystem::path& folder,
                          const FetchOptions& options);

// One file, appended to what `part` already holds. Throws ErrorKind::unsupported in builds
// without libcurl, ErrorKind::file with the reason where the network or the host fails.
void download(const std::string& url, const std::filesystem::path& part,
              const std::function<void(std::uint64_t, std::uint64_t)>& progress);

}  // namespace rode::lab
