// SPDX-License-Identifier: Apache-2.0
// Finds and reads runs. What is wrong with one costs only that one.
#include "lab/report/runs.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <set>

#include <fmt/format.h>

#include "core/file_io.h"
#include "lab/base/name.h"
#include "rode/error.h"

namespace rode::lab {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kOperation = "report";

// What the report needs of run.json, so that nothing later meets a wrong type.
void check_description(const fs::path& file, const Json& run) {
  const auto require = [&](bool right, std::string_view what) {
    if (right) return;
    throw file_error(kOperation, file.string(),
                     fmt::format("{}; expected the description that 'rode train' writes; restore "
                                 "the file from a copy, or repeat the run",
                                 what));
  };
  if (run.is_object() && !run.contains("task") && run.contains("model")) {
    throw file_error(
        kOperation, file.string(),
        "describes a run of 'rode finetune' that was not evaluated; run 'rode evaluate --run'");
  }
  require(run.is_object() && run.contains("task") && run["task"].is_object(), "has no task");
  require(is_name(text_at(run["task"], "name")), "its task has no name");
  for (const char* part : {"model", "data", "train"}) {
    require(!run["task"].contains(part) || run["task"][part].is_object(),
            fmt::format("task.{} is not an object", part));
  }
  require(is_name(text_at(run, "optimizer")), "names no optimizer");
  require(run.contains("options") && run["options"].is_object(), "has no options");
  for (const auto& [key, value] : run["options"].items()) {
    require(value.is_string(), fmt::format("its option '{}' is not text", printable(key)));
  }
  require(run.contains("seed") && run["seed"].is_number_integer(), "has no seed");
  require(run.contains("steps") && run["steps"].is_number_integer(), "has no steps");
}

void check_lines(const fs::path& file, const std::vector<Json>& lines) {
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const auto step = lines[i].find("step");
    if (step != lines[i].end() && step->is_number_integer()) continue;
    throw file_error(kOperation, file.string(),
                     fmt::format("line {} has no step; expected a log of 'rode train'; restore the "
                                 "file from a copy, or repeat the run",
                                 i + 1));
  }
}

// Lines have checksums, and the result records how long the log must be.
void check_length(const fs::path& log, const Json& result) {
  const std::uint64_t bytes = fs::file_size(log);
  const auto expected = result.find("log_bytes");
  if (expected == result.end() || !expected->is_number_integer()) return;
  if (bytes == expected->get<std::uint64_t>()) return;
  throw file_error(kOperation, log.string(),
                   fmt::format("has {} bytes; expected {}, as result.json says: lines are missing "
                               "or were added; restore the file from a copy, or repeat the run",
                               bytes, expected->get<std::uint64_t>()));
}

// "seed2" before "seed10": numbers inside names by their value.
bool name_before(const std::string& a, const std::string& b) {
  const auto digit = [](char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; };
  std::size_t i = 0;
  std::size_t j = 0;
  while (i < a.size() && j < b.size()) {
    if (!digit(a[i]) || !digit(b[j])) {
      if (a[i] != b[j]) return a[i] < b[j];
      ++i, ++j;
      continue;
    }
    std::size_t i_end = i;
    std::size_t j_end = j;
    while (i_end < a.size() && digit(a[i_end])) ++i_end;
    while (j_end < b.size() && digit(b[j_end])) ++j_end;
    while (i + 1 < i_end && a[i] == '0') ++i;
    while (j + 1 < j_end && b[j] == '0') ++j;
    if (i_end - i != j_end - j) return i_end - i < j_end - j;
    const int order = a.compare(i, i_end - i, b, j, j_end - j);
    if (order != 0) return order < 0;
    i = i_end, j = j_end;
  }
  if (a.size() - i != b.size() - j) return a.size() - i < b.size() - j;
  return a < b;
}

bool is_systems(const Json& json) {
  if (text_at(json, "bench") != "systems" || !json.contains("rows")) return false;
  const Json& rows = json["rows"];
  return rows.is_array() && std::all_of(rows.begin(), rows.end(), [](const Json& row) {
           return !text_at(row, "task").empty() && !text_at(row, "optimizer").empty();
         });
}

bool is_evaluation(const Json& json) {
  return is_name(text_at(json, "optimizer")) && json.contains("seed") &&
         json["seed"].is_number_integer() && json.contains("tasks") && json["tasks"].is_object();
}

enum class FileKind { other, systems, evaluation };

class Finder {
 public:
  explicit Finder(const Note& note) : note_(note) {}

  void search(const fs::path& folder) {
    if (fs::is_regular_file(folder)) {
      take_file(folder);
      return;
    }
    if (fs::exists(folder / "systems.json")) take_file(folder / "systems.json");
    for (const fs::path& file : {folder / "results.json", folder / "evaluation" / "results.json"}) {
      // Another file of that name is noted, and the folders next to it and below it are searched.
      if (fs::exists(file) && take_file(file) == FileKind::evaluation) return;
    }
    if (fs::exists(folder / "run.json")) {
      take(folder);
      return;
    }
    std::vector<fs::path> inner;
    std::error_code error;
    for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
      // A link to a run is one; a link to a folder of runs may lead back above it.
      std::error_code gone;
      const bool safe = !at->is_symlink(gone) || fs::exists(at->path() / "run.json", gone);
      if (safe && at->is_directory(gone)) inner.push_back(at->path());
    }
    if (error) found_.problems.push_back({folder, error.message()});
    std::sort(inner.begin(), inner.end(), [](const fs::path& a, const fs::path& b) {
      return name_before(a.filename().string(), b.filename().string());
    });
    for (const fs::path& one : inner) search(one);
  }

  FoundRuns found() { return std::move(found_); }

 private:
  void take(const fs::path& folder) {
    once(folder, [&] { found_.runs.push_back(read_run(folder, note_)); });
  }

  // They have no checksums, and nothing to say about that.
  FileKind take_file(const fs::path& file) {
    FileKind& kind = kinds_[once_key(file)];  // as it was found the first time
    once(file, [&] {
      Json json = read_json(file);
      if (is_systems(json)) {
        kind = FileKind::systems;
        found_.systems.push_back({file, std::move(json)});
      } else if (is_evaluation(json)) {
        kind = FileKind::evaluation;
        found_.evaluations.push_back({file, std::move(json)});
      } else {
        throw file_error(
            kOperation, file.string(),
            "is neither from 'rode bench systems' nor from 'rode evaluate --run', which records "
            "optimizer and seed; leave it out, or repeat the command that wrote it");
      }
    });
    return kind;
  }

  static fs::path once_key(const fs::path& path) {
    std::error_code error;
    const fs::path whole = fs::weakly_canonical(path, error);
    return error ? path : whole;
  }

  template <class Read>
  void once(const fs::path& folder, Read&& read) {
    if (!seen_.insert(once_key(folder)).second) return;
    try {
      read();
    } catch (const Error& problem) {
      found_.problems.push_back({folder, problem.what()});
    } catch (const nlohmann::json::exception& problem) {
      found_.problems.push_back({folder, problem.what()});
    } catch (const fs::filesystem_error& problem) {
      found_.problems.push_back({folder, problem.what()});
    }
  }

  const Note& note_;
  FoundRuns found_;
  std::set<fs::path> seen_;
  std::map<fs::path, FileKind> kinds_;
};

}  // namespace

std::optional<double> number_at(const Json& json, const std::string& key) {
  if (!json.is_object()) return {};
  const auto found = json.find(key);
  if (found == json.end() || !found->is_number()) return {};
  return found->get<double>();
}

std::string text_at(const Json& json, const std::string& key) {
  if (!json.is_object()) return {};
  const auto found = json.find(key);
  return found == json.end() || !found->is_string() ? std::string() : found->get<std::string>();
}

std::optional<double> RunSummary::number(const std::string& key) const {
  return number_at(result, key);
}

RunSummary read_run(const fs::path& folder, const Note& note) {
  RunSummary summary{.folder = folder};
  summary.run = read_json(folder / "run.json", note);
  check_description(folder / "run.json", summary.run);
  summary.seed = summary.run["seed"];
  if (!fs::exists(folder / "result.json")) return summary;
  summary.result = read_json(folder / "result.json", note);
  const std::string status = text_at(summary.result, "status");
  if (status != "finished" && status != "diverged") {
    throw file_error(kOperation, (folder / "result.json").string(),
                     fmt::format("status is '{}'; expected finished or diverged; restore the file "
                                 "from a copy, or repeat the run",
                                 printable(status)));
  }
  summary.status = status == "finished" ? RunStatus::finished : RunStatus::diverged;
  const fs::path log = folder / "log.jsonl";
  summary.log = read_json_lines(log, note);
  check_lines(log, summary.log);
  check_length(log, summary.result);
  // Only the axis of seconds needs it, and a copy of a run may lack it.
  const fs::path times = folder / "times.jsonl";
  if (fs::exists(times)) summary.times = read_good_lines(times).lines;
  return summary;
}

FoundRuns find_runs(const std::vector<fs::path>& folders, const Note& note) {
  Finder finder(note);
  for (const fs::path& folder : folders) {
    if (!fs::is_directory(folder) && !fs::is_regular_file(folder)) {
      throw Error(
          ErrorKind::invalid_argument, kOperation,
          fmt::format(
              "'{}' is not a folder; expected a folder of runs of 'rode train', 'rode compare' or "
              "'rode sweep', or a file of 'rode bench systems' or 'rode evaluate'",
              printable(folder.string())));
    }
    finder.search(folder);
  }
  return finder.found();
}

}  // namespace rode::lab
