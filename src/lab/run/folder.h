// SPDX-License-Identifier: Apache-2.0
// The folder of one run: its files, and which checkpoint is the last.
//
//   run.json            what decides the run's numbers
//   log.jsonl           one object per step and per evaluation; the same bytes for the same run
//   times.jsonl         seconds and samples at the evaluations: what two runs do not share
//   checkpoints/step-00000120.safetensors
//   events.out.tfevents.*
//   config.json, model.safetensors    at the end: what from_pretrained(folder) opens
//   result.json         written last: the run is done
//   .lock               held by the process that trains (lock.h)
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace rode::lab {

using Json = nlohmann::ordered_json;
using Note = std::function<void(const std::string&)>;

class RunFolder {
 public:
  explicit RunFolder(std::filesystem::path path) : path_(std::move(path)) {}

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path log() const { return path_ / "log.jsonl"; }
  std::filesystem::path times() const { return path_ / "times.jsonl"; }
  std::filesystem::path weights() const { return path_ / "model.safetensors"; }
  std::filesystem::path config() const { return path_ / "config.json"; }
  // Folders of weights.
  std::filesystem::path best() const { return path_ / "best"; }
  std::filesystem::path averaged() const { return path_ / "averaged"; }
  std::filesystem::path checkpoint(std::int64_t step) const;

  bool has_run() const;
  // Throws where start() may not: nothing is written yet, not even a lock.
  void check_start(bool overwrite) const;
  void create() const;  // durably, with those above it
  // An empty folder for `run`. Where one is there already: removed with `overwrite`, else refused.
  void start(const Json& run, bool overwrite) const;
  // Throws where the run in the folder is another one, naming what differs. Only reads.
  void continue_run(const Json& run, const Note& note = {}) const;
  // The length of the run in the folder where `run` is the same and longer, and that one is done:
  // nothing is left of it but to be extended. Only reads.
  std::optional<std::int64_t> extended_from(const Json& run) const;
  // Makes it the run of the folder; its log and checkpoints stay.
  void extend(const Json& run) const;
  // The step from which the run was last extended; 0 where it never was.
  std::int64_t last_extension() const;
  // Where and on what the run began, as run.json has it; empty for runs of older versions.
  Json environment() const;
  // What a killed process has left half-written. Under the lock alone: another process's files
  // look the same while it writes them.
  void remove_temporaries() const;

  std::vector<std::int64_t> checkpoints() const;  // steps, rising
  // Removes all except the last `count`, and never that of `saved`.
  void keep_last(std::int64_t count, std::int64_t saved) const;
  // Renames a checkpoint that cannot be read, so that it counts no more; its new name.
  std::optional<std::filesystem::path> set_aside(std::int64_t step) const;

  std::optional<Json> result() const;
  void write_result(const Json& result) const;
  void remove_result() const;

 private:
  std::vector<std::filesystem::path> own_files() const;

  std::filesystem::path path_;
};

// "/options/lr is 0.01 there and 0.02 here": the first difference of two runs as run.json has them;
// empty where they are the same. Versions and environments make no difference.
std::string run_difference(const Json& there, const Json& here);

// Without its checksum, which is compared. What has none is of an older version or of another
// writer, and is reported to `note`.
Json read_json(const std::filesystem::path& path, const Note& note = {});
// Lines of a log up to the first that is not a JSON object or does not match its checksum. A last
// line without an end, which a killed process leaves, is left out.
struct JsonLines {
  std::vector<Json> lines;
  std::vector<std::uint64_t> ends;  // of each line, in bytes of the file
  bool whole = true;                // no line was refused
  bool checked = true;              // every line has a checksum
};
JsonLines read_good_lines(const std::filesystem::path& path);
// The same; throws where a line is refused.
std::vector<Json> read_json_lines(const std::filesystem::path& path, const Note& note = {});
void write_json(const std::filesystem::path& path, const Json& json);

}  // namespace rode::lab
