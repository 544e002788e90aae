// SPDX-License-Identifier: Apache-2.0
// Text files, plain or compressed, cut into documents.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace rode::lab {

// The file's bytes in pieces. Names that end in .xz, .gz, .zst or .bz2 are decompressed, in
// builds with libarchive; elsewhere they are refused.
void read_text(const std::filesystem::path& path,
               const std::function<void(std::string_view)>& sink);

enum class DocumentRule {
  file,     // a file is a document
  blank,    // a document ends with a blank line
  heading,  // a document begins with a line "= Title =", as in WikiText
};

DocumentRule document_rule(std::string_view name);  // throws, naming the nearest

// Gives out whole documents. Nothing is dropped: they add up to the text.
class DocumentSplitter {
 public:
  DocumentSplitter(DocumentRule rule, std::function<void(std::string_view)> sink)
      : rule_(rule), sink_(std::move(sink)) {}

  void push(std::string_view text);
  void finish();  // at the end of each file

 private:
  void take_line(std::string_view line);
  void emit();

  DocumentRule rule_;
  std::function<void(std::string_view)> sink_;
  std::string line_;      // the start of a line whose end is not there yet
  std::string document_;  // whole lines
  bool ended_ = false;    // a blank line was seen
};

}  // namespace rode::lab
