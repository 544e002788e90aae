// SPDX-License-Identifier: Apache-2.0
// Reading text and finding documents in it.
#include "lab/data/text_reader.h"

#include <algorithm>
#include <array>
#include <vector>

#include <fmt/format.h>

#include "core/file_io.h"
#include "core/nearest.h"
#include "lab/data/decompress.h"

namespace rode::lab {
namespace {

constexpr std::string_view kBlanks = " \t\r\n";

bool is_blank(std::string_view text) {
  return text.find_first_not_of(kBlanks) == std::string_view::npos;
}

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) + 1 - first);
}

// "= Title =" and not "= = Section = =" nor "== Section ==".
bool is_heading(std::string_view line) {
  line = trimmed(line);
  if (line.size() < 5 || !line.starts_with("= ") || !line.ends_with(" =")) return false;
  const std::string_view title = trimmed(line.substr(1, line.size() - 2));
  return !title.empty() && title.front() != '=' && title.back() != '=';
}

}  // namespace

void read_text(const std::filesystem::path& path,
               const std::function<void(std::string_view)>& sink) {
  constexpr std::array<std::string_view, 4> kCompressed = {".xz", ".gz", ".zst", ".bz2"};
  const std::string extension = path.extension().string();
  if (std::find(kCompressed.begin(), kCompressed.end(), extension) != kCompressed.end()) {
    decompress(path, sink);
    return;
  }
  const FileMapping mapping(path, "read text");
  const auto bytes = mapping.bytes();
  sink({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

DocumentRule document_rule(std::string_view name) {
  if (name == "file") return DocumentRule::file;
  if (name == "blank") return DocumentRule::blank;
  if (name == "heading") return DocumentRule::heading;
  const std::vector<std::string> names = {"file", "blank", "heading"};
  throw Error(ErrorKind::invalid_argument, "documents",
              fmt::format("unknown rule '{}'; did you mean '{}'? expected file, blank or heading",
                          name, nearest(name, names)));
}

void DocumentSplitter::push(std::string_view text) {
  if (rule_ == DocumentRule::file) {
    document_ += text;
    return;
  }
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    if (end == std::string_view::npos) {
      line_ += text;
      return;
    }
    if (line_.empty()) {
      take_line(text.substr(0, end + 1));
    } else {
      line_ += text.substr(0, end + 1);
      take_line(line_);
      line_.clear();
    }
    text.remove_prefix(end + 1);
  }
}

void DocumentSplitter::take_line(std::string_view line) {
  const bool blank = is_blank(line);
  const bool begins = rule_ == DocumentRule::heading ? is_heading(line) : ended_ && !blank;
  // Blank lines before the first document belong to it.
  if (begins && !is_blank(document_)) emit();
  ended_ = blank;
  document_ += line;
}

void DocumentSplitter::finish() {
  if (!line_.empty()) take_line(line_);
  line_.clear();
  if (!document_.empty()) emit();
  ended_ = false;
}

void DocumentSplitter::emit() {
  sink_(document_);
  document_.clear();
}

}  // namespace rode::lab
