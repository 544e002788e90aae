// SPDX-License-Identifier: Apache-2.0
// Reading text and finding documents in it.
#include "lab/text/text_reader.h"

#include <cerrno>
#include <system_error>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "core/file_io.h"
#include "core/nearest.h"
#include "lab/text/decompress.h"

namespace rode::lab {
namespace {

constexpr std::size_t kReadBlock = 1U << 20U;
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

// Read, not mapped: pages of a mapping count as the process's memory.
void read_plain(const std::filesystem::path& path,
                const std::function<void(std::string_view)>& sink) {
  const FileMapping readable(path,
                             "read text");  // its message for a missing file, and a regular one
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::vector<char> block(kReadBlock);
  for (;;) {
    const ::ssize_t count = ::read(file.get(), block.data(), block.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      throw file_error("read text", path.string(),
                       fmt::format("cannot be read ({}); expected a readable file; check the disk",
                                   std::error_code(errno, std::generic_category()).message()));
    }
    if (count == 0) return;
    sink({block.data(), static_cast<std::size_t>(count)});
  }
}

}  // namespace

void read_text(const std::filesystem::path& path,
               const std::function<void(std::string_view)>& sink) {
  if (is_compressed(path)) {
    decompress(path, sink);
  } else {
    read_plain(path, sink);
  }
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
    if (!text.empty()) give(text, false, false);
    return;
  }
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    const bool whole = end != std::string_view::npos;
    const std::string_view part = text.substr(0, whole ? end + 1 : text.size());
    text.remove_prefix(part.size());
    if (in_long_line_) {
      give(part, false, false);
      in_long_line_ = !whole;
    } else if (whole && line_.empty()) {
      take_line(part);
    } else {
      line_ += part;
      if (!whole && line_.size() <= kLongestMarker) continue;
      in_long_line_ = !whole;
      take_line(line_);
      line_.clear();
    }
  }
}

void DocumentSplitter::take_line(std::string_view line) {
  const bool marker = line.size() <= kLongestMarker;
  const bool blank = marker && is_blank(line);
  const bool begins =
      rule_ == DocumentRule::heading ? marker && is_heading(line) : ended_ && !blank;
  // Blank lines before the first document belong to it.
  give(line, begins && !only_blank_, blank);
  ended_ = blank;
}

void DocumentSplitter::give(std::string_view text, bool begins, bool blank) {
  begins = begins || !open_;
  only_blank_ = blank && (begins || only_blank_);
  open_ = true;
  sink_(text, begins);
}

void DocumentSplitter::finish() {
  if (!line_.empty()) take_line(line_);
  line_.clear();
  in_long_line_ = false;
  open_ = false;
  only_blank_ = true;
  ended_ = false;
}

}  // namespace rode::lab
