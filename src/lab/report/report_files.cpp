// SPDX-License-Identifier: Apache-2.0
// Writes the files of a report, and removes what an earlier one has left.
#include <algorithm>

#include <fmt/format.h>

#include "core/file_io.h"
#include "lab/report/png.h"
#include "lab/report/report.h"

namespace rode::lab {
namespace {

namespace fs = std::filesystem;

class ReportWriter {
 public:
  ReportWriter(fs::path folder, const std::set<std::string>& formats, const Note& note)
      : folder_(std::move(folder)), formats_(formats), note_(note) {
    if (formats_.count("png") > 0) converter_ = svg_converter();
  }

  bool wants(const char* format) const { return formats_.count(format) > 0; }

  void text(const std::string& file, const std::string& content) {
    const fs::path path = folder_ / file;
    create_folders(path.parent_path(), "report");
    AtomicFile out(path, "report");
    out.write(std::as_bytes(std::span(content.data(), content.size())));
    out.commit();
    files_.push_back(file);
  }

  void table(const Table& table, const std::string& name) {
    if (wants("csv")) text("tables/" + name + ".csv", to_csv(table));
    if (wants("latex")) text("tables/" + name + ".tex", to_latex(table));
  }

  void figure(const std::string& name, const std::string& svg) {
    const std::string file = "figures/" + name + ".svg";
    // A converter reads a file.
    const bool only_for_png = !wants("svg");
    if (only_for_png && converter_.empty()) return;
    text(file, svg);
    if (!converter_.empty()) png(name, file);
    if (!only_for_png) return;
    fs::remove(folder_ / file);
    files_.erase(std::find(files_.begin(), files_.end(), file));
  }

  std::vector<std::string> files() { return std::move(files_); }

  // Tables and figures that an earlier report lists and this one does not have.
  void remove_older() {
    std::error_code error;
    if (!fs::exists(folder_ / "report.json", error)) return;
    Json older;
    try {
      older = read_json(folder_ / "report.json");
    } catch (const std::exception&) {
      return;  // what it says cannot be relied upon
    }
    if (!older.is_object() || !older.contains("files") || !older["files"].is_array()) return;
    for (const Json& entry : older["files"]) {
      if (!entry.is_string()) continue;
      const std::string file = entry;
      const bool ours = (file.starts_with("tables/") || file.starts_with("figures/")) &&
                        file.find("..") == std::string::npos;
      if (!ours || std::find(files_.begin(), files_.end(), file) != files_.end()) continue;
      fs::remove(folder_ / file, error);
      fs::remove((folder_ / file).parent_path(), error);  // where it was the last
    }
  }

 private:
  void png(const std::string& name, const std::string& svg) {
    const std::string file = "figures/" + name + ".png";
    if (convert_svg(converter_, folder_ / svg, folder_ / file)) {
      files_.push_back(file);
      return;
    }
    if (note_) note_(fmt::format("'{}' made no PNG of '{}'", converter_, printable(svg)));
    converter_.clear();
  }

  fs::path folder_;
  const std::set<std::string>& formats_;
  const Note& note_;
  std::string converter_;
  std::vector<std::string> files_;
};

}  // namespace

std::vector<std::string> write_report(const Report& report, const fs::path& folder,
                                      const std::set<std::string>& formats, const Note& note) {
  ReportWriter writer(folder, formats, note);
  for (const Table& table : report.tables) writer.table(table, table.name);
  for (std::size_t i = 0; i < report.comparisons.size(); ++i) {
    const std::string& name = report.comparisons[i].name;
    const TaskReport& task = report.tasks[i];
    for (const Table& table : task.tables)
      writer.table(table, fmt::format("{}-{}", name, table.name));
    if (!writer.wants("svg") && !writer.wants("png")) continue;
    for (const auto& [file, chart] : task.charts)
      writer.figure(fmt::format("{}/{}", name, file), to_svg(chart));
    for (const auto& [file, grid] : task.grids)
      writer.figure(fmt::format("{}/{}", name, file), to_svg(grid));
  }
  if (writer.wants("md")) writer.text("report.md", to_markdown(report));
  if (writer.wants("html")) writer.text("report.html", to_html(report));
  writer.remove_older();
  std::vector<std::string> files = writer.files();
  Json json = to_json(report);
  json["files"] = files;
  write_json(folder / "report.json", json);
  files.emplace_back("report.json");
  return files;
}

}  // namespace rode::lab
