// SPDX-License-Identifier: Apache-2.0
// Text files, plain or compressed, cut into documents.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace rode::lab {

// The file's bytes in pieces of at most a megabyte. Names that end in .xz, .gz, .zst or .bz2 are
// decompressed, in builds with libarchive; elsewhere they are refused.
void read_text(const std::filesystem::path& path,
               const std::function<void(std::string_view)>& sink);

enum class DocumentRule {
  file,     // a file is a document
  blank,    // a document ends with a blank line
  heading,  // a document begins with a line "= Title =", as in WikiText
};

DocumentRule document_rule(std::string_view name);  // throws, naming the nearest

// Longer lines are text: neither blank nor a heading. So no line has to be kept in memory.
inline constexpr std::size_t kLongestMarker = 1U << 20U;

// Finds documents in text that arrives in parts. Nothing is dropped, and no more than a line kept:
// what it gives out adds up to the text.
class DocumentSplitter {
 public:
  // A part of a document; `begins`: its first.
  using Sink = std::function<void(std::string_view text, bool begins)>;

  DocumentSplitter(DocumentRule rule, Sink sink) : rule_(rule), sink_(std::move(sink)) {}

  void push(std::string_view text);
  void finish();  // at the end of each file

 private:
  void take_line(std::string_view line);
  void give(std::string_view text, bool begins, bool blank);

  DocumentRule rule_;
  Sink sink_;
  std::string line_;           // the start of a line whose end is not there yet
  bool in_long_line_ = false;  // whose start has been given out
  bool open_ = false;          // something of the document has been given out
  bool only_blank_ = true;     // and that was blank
  bool ended_ = false;         // a blank line was seen
};

}  // namespace rode::lab
