// SPDX-License-Identifier: Apache-2.0
// The runs below some folders, as their files describe them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lab/run/folder.h"

namespace rode::lab {

enum class RunStatus { finished, diverged, unfinished };

struct RunSummary {
  std::filesystem::path folder = {};
  std::uint64_t seed = 0;
  RunStatus status = RunStatus::unfinished;
  Json run = {};                 // run.json
  Json result = Json::object();  // result.json; empty where the run is unfinished
  std::vector<Json> log = {};    // of a run that is done
  std::vector<Json> times = {};

  bool diverged() const { return status == RunStatus::diverged; }
  bool finished() const { return status == RunStatus::finished; }
  std::optional<double> number(const std::string& key) const;  // of result.json
};

// Throws where a file is damaged, or is not what `rode train` writes.
RunSummary read_run(const std::filesystem::path& folder, const Note& note = {});

struct RunProblem {
  std::filesystem::path folder;
  std::string what;
};

// A file of another command that a report has a table for.
struct FoundTable {
  std::filesystem::path file;
  Json json;
};

struct FoundRuns {
  std::vector<RunSummary> runs = {};
  std::vector<RunProblem> problems = {};     // of folders that are left out
  std::vector<FoundTable> systems = {};      // of 'rode bench systems'
  std::vector<FoundTable> evaluations = {};  // of 'rode evaluate', one per run
};

// Every folder with a run.json, those below a folder in the order of their names; besides
// systems.json of 'rode bench systems', and results.json of 'rode evaluate', in a folder of its own
// or in that of the fine-tuned run. Files of these two may be named themselves. What is found
// twice, by the same path, counts once. Throws where a folder or file is missing.
FoundRuns find_runs(const std::vector<std::filesystem::path>& folders, const Note& note = {});

// A number at a key, where there is one.
std::optional<double> number_at(const Json& json, const std::string& key);
// The text at a key; empty where there is none.
std::string text_at(const Json& json, const std::string& key);

}  // namespace rode::lab
