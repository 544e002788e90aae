// SPDX-License-Identifier: Apache-2.0
// Starts, finds again and tidies the folder of a run.
#include "lab/run/folder.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

#include "core/file_io.h"
#include "lab/base/sealed_json.h"
#include "rode/error.h"

namespace rode::lab {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kOperation = "train";
constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kSuffix = ".safetensors";

std::string text_of(const FileMapping& mapping) {
  const auto bytes = mapping.bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The file system's own errors name paths and calls; callers get them as every other error.
template <class Work>
auto on_disk(const fs::path& path, Work&& work) {
  try {
    return work();
  } catch (const fs::filesystem_error& error) {
    throw file_error(kOperation, path.string(), error.code().message());
  }
}

std::optional<std::int64_t> step_of(const fs::path& file) {
  const std::string name = file.filename().string();
  if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) return {};
  const char* begin = name.data() + kPrefix.size();
  const char* end = name.data() + name.size() - kSuffix.size();
  std::int64_t step = 0;
  const auto [stop, error] = std::from_chars(begin, end, step);
  if (error != std::errc() || stop != end) return {};
  return step;
}

void tell_unchecked(const fs::path& path, const Note& note) {
  if (!note) return;
  note(fmt::format("'{}' has no checksum; damage to it would not be noticed",
                   printable(path.string())));
}

void remove_matching(const fs::path& folder, std::string_view prefix, std::string_view suffix) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(prefix) && name.ends_with(suffix)) found.push_back(entry.path());
  }
  for (const fs::path& path : found) fs::remove(path);
}

// What a run is, without what it was made with.
Json essence(Json run) {
  for (const char* key : {"version", "environment", "extended"}) run.erase(key);
  return run;
}

}  // namespace

std::string run_difference(const Json& there, const Json& here) {
  const Json before = essence(there);
  const Json now = essence(here);
  for (const auto& part : Json::diff(before, now)) {
    const std::string at = part.at("path");
    const Json::json_pointer pointer(at);
    const auto value = [&](const Json& json) {
      return json.contains(pointer) ? json.at(pointer).dump() : std::string("nothing");
    };
    return fmt::format("{} is {} there and {} here", at, value(before), value(now));
  }
  return {};
}

fs::path RunFolder::checkpoint(std::int64_t step) const {
  return path_ / "checkpoints" / fmt::format("{}{:08}{}", kPrefix, step, kSuffix);
}

bool RunFolder::has_run() const { return fs::exists(path_ / "run.json"); }

std::vector<fs::path> RunFolder::own_files() const {
  return {path_ / "result.json", log(),  times(),   weights(), config(),
          path_ / "checkpoints", best(), averaged()};
}

void RunFolder::check_start(bool overwrite) const {
  on_disk(path_, [&] {
    if (has_run() && !overwrite) {
      throw Error(ErrorKind::invalid_argument, kOperation,
                  fmt::format("folder '{}' has a run; continue it with --resume, replace it with "
                              "--overwrite, or choose another --out",
                              printable(path_.string())));
    }
    for (const fs::path& file : own_files()) {
      // Without run.json they are somebody else's, and not ours to replace.
      // An empty folder of checkpoints is what a process killed before run.json leaves.
      if (!has_run() && fs::exists(file) && !(fs::is_directory(file) && fs::is_empty(file))) {
        throw Error(
            ErrorKind::invalid_argument, kOperation,
            fmt::format("'{}' exists, but there is no run.json next to it; choose another --out",
                        printable(file.string())));
      }
    }
  });
}

void RunFolder::create() const {
  on_disk(path_, [&] { create_folders(path_, kOperation); });
}

void RunFolder::start(const Json& run, bool overwrite) const {
  check_start(overwrite);
  on_disk(path_, [&] {
    for (const fs::path& file : own_files()) fs::remove_all(file);
    if (has_run()) remove_matching(path_, "events.out.tfevents.", ".rode");
  });
  remove_temporaries();
  // Last, with the folder's own synchronisation: who finds it finds the rest.
  write_json(path_ / "run.json", run);
}

void RunFolder::continue_run(const Json& run, const Note& note) const {
  const std::string differs = run_difference(read_json(path_ / "run.json", note), run);
  if (!differs.empty()) {
    throw Error(
        ErrorKind::invalid_argument, kOperation,
        fmt::format("folder '{}' has another run: {}; continue it with its original settings, or "
                    "choose another --out",
                    printable(path_.string()), differs));
  }
}

std::optional<std::int64_t> RunFolder::extended_from(const Json& run) const {
  Json was = read_json(path_ / "run.json");
  if (!was.contains("steps") || !was["steps"].is_number_integer()) return {};
  const auto before = was["steps"].get<std::int64_t>();
  if (before >= run.value("steps", std::int64_t{0})) return {};
  was["steps"] = run["steps"];
  if (!run_difference(was, run).empty()) return {};
  const auto steps = checkpoints();
  const bool saved = !steps.empty() && steps.back() == before;
  const auto ended = result();
  // Killed while it was being extended: the result is gone, the last checkpoint is there.
  if (!ended) return saved ? std::optional(before) : std::nullopt;
  if (ended->value("status", "") != "finished") return {};
  if (saved) return before;
  throw Error(ErrorKind::invalid_argument, kOperation,
              fmt::format("folder '{}' has a finished run of {} steps without the checkpoint of "
                          "its last step, so it cannot be extended to {}; choose another --out",
                          printable(path_.string()), before, run["steps"].dump()));
}

void RunFolder::extend(const Json& run) const {
  Json now = read_json(path_ / "run.json");
  Json& list = now["extended"];
  if (!list.is_array()) list = Json::array();
  list.push_back({{"from", now["steps"]}, {"to", run["steps"]}});
  now["steps"] = run["steps"];
  // The result first: a longer run with the result of the shorter would look finished.
  remove_result();
  write_json(path_ / "run.json", now);
}

std::int64_t RunFolder::last_extension() const {
  const Json list = read_json(path_ / "run.json").value("extended", Json::array());
  return list.is_array() && !list.empty() ? list.back().value("from", std::int64_t{0}) : 0;
}

Json RunFolder::environment() const {
  return read_json(path_ / "run.json").value("environment", Json::object());
}

void RunFolder::remove_temporaries() const {
  on_disk(path_, [&] {
    create_folders(path_ / "checkpoints", kOperation);
    // The names of AtomicFile's temporary files.
    remove_matching(path_, ".rode-", ".tmp");
    remove_matching(path_ / "checkpoints", ".rode-", ".tmp");
  });
}

std::vector<std::int64_t> RunFolder::checkpoints() const {
  std::vector<std::int64_t> steps;
  on_disk(path_, [&] {
    if (!fs::exists(path_ / "checkpoints")) return;
    for (const auto& entry : fs::directory_iterator(path_ / "checkpoints")) {
      if (const auto step = step_of(entry.path())) steps.push_back(*step);
    }
  });
  std::sort(steps.begin(), steps.end());
  return steps;
}

void RunFolder::keep_last(std::int64_t count, std::int64_t saved) const {
  std::vector<std::int64_t> steps = checkpoints();
  const auto kept = static_cast<std::size_t>(std::max<std::int64_t>(1, count));
  if (steps.size() <= kept) return;
  steps.resize(steps.size() - kept);
  on_disk(path_, [&] {
    for (const std::int64_t step : steps) {
      if (step != saved) fs::remove(checkpoint(step));
    }
  });
}

std::optional<fs::path> RunFolder::set_aside(std::int64_t step) const {
  const fs::path from = checkpoint(step);
  // A name that cannot be read may be gone by now.
  if (fs::symlink_status(from).type() == fs::file_type::not_found) return {};
  fs::path to = from;
  to += ".bad";
  on_disk(from, [&] { fs::rename(from, to); });
  return to;
}

std::optional<Json> RunFolder::result() const {
  if (!fs::exists(path_ / "result.json")) return {};
  return read_json(path_ / "result.json");
}

void RunFolder::write_result(const Json& result) const {
  write_json(path_ / "result.json", result);
}

void RunFolder::remove_result() const {
  on_disk(path_, [&] { fs::remove(path_ / "result.json"); });
}

Json read_json(const fs::path& path, const Note& note) {
  const FileMapping mapping(path, kOperation);
  const std::string text = text_of(mapping);
  Json json = Json::parse(text, nullptr, false);
  const Seal seal = unseal(text, json);
  if (seal == Seal::wrong) {
    throw file_error(kOperation, path.string(),
                     "does not match its checksum: it was damaged or edited; restore the file from "
                     "a copy, or choose another --out");
  }
  if (json.is_discarded()) {
    throw file_error(kOperation, path.string(),
                     "is not JSON; expected a file written by a run; restore the file from a copy, "
                     "or choose another --out");
  }
  if (seal == Seal::absent) tell_unchecked(path, note);
  return json;
}

JsonLines read_good_lines(const fs::path& path) {
  const FileMapping mapping(path, kOperation);
  const std::string text = text_of(mapping);
  JsonLines out;
  for (std::size_t at = 0, end = 0; (end = text.find('\n', at)) != std::string::npos;
       at = end + 1) {
    Json line = Json::parse(text.substr(at, end - at), nullptr, false);
    const Seal seal = unseal(std::string_view(text).substr(at, end - at), line);
    out.whole = line.is_object() && seal != Seal::wrong;
    if (!out.whole) break;
    out.checked = out.checked && seal == Seal::right;
    out.lines.push_back(std::move(line));
    out.ends.push_back(end + 1);
  }
  return out;
}

std::vector<Json> read_json_lines(const fs::path& path, const Note& note) {
  JsonLines read = read_good_lines(path);
  if (!read.whole) {
    throw file_error(kOperation, path.string(),
                     fmt::format("line {} is not JSON or does not match its checksum; expected "
                                 "one object per line, as it was written; restore the file from a "
                                 "copy, or repeat the run with another --out",
                                 read.lines.size() + 1));
  }
  if (!read.checked) tell_unchecked(path, note);
  return std::move(read.lines);
}

void write_json(const fs::path& path, const Json& json) {
  const std::string text = sealed(json, 2) + "\n";
  AtomicFile file(path, kOperation);
  file.write(std::as_bytes(std::span(text.data(), text.size())));
  file.commit();
}

}  // namespace rode::lab
