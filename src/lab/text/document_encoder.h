// SPDX-License-Identifier: Apache-2.0
// Documents that arrive in parts to tokens, in memory that does not grow with them.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lab/text/tokenizer.h"

namespace rode::lab {

// The tokens are those of each document as a whole: one end of text, then encode(document).
class DocumentEncoder {
 public:
  using Sink = std::function<void(std::span<const Token>)>;

  DocumentEncoder(Tokenizer& tokenizer, Sink sink)
      : tokenizer_(&tokenizer), sink_(std::move(sink)) {}

  void push(std::string_view text, bool begins);  // as DocumentSplitter gives it out
  void finish();                                  // at the end of the last document

  std::uint64_t documents() const { return documents_; }
  std::uint64_t bytes() const { return bytes_; }

 private:
  void encode(bool last);
  void flush();

  Tokenizer* tokenizer_;
  Sink sink_;
  std::string text_;  // what is not encoded yet
  std::vector<Token> tokens_;
  std::uint64_t documents_ = 0;
  std::uint64_t bytes_ = 0;
};

}  // namespace rode::lab
