// SPDX-License-Identifier: Apache-2.0
// Encoding as text comes: what the rest of a document cannot change any more.
#include "lab/text/document_encoder.h"

namespace rode::lab {
namespace {

constexpr std::size_t kPart = 1U << 17U;  // bytes between two calls of the tokenizer

}  // namespace

void DocumentEncoder::push(std::string_view text, bool begins) {
  if (begins) {
    encode(true);
    tokens_.push_back(tokenizer_->end_of_text());
    ++documents_;
  }
  bytes_ += text.size();
  for (std::size_t at = 0; at < text.size(); at += kPart) {
    text_ += text.substr(at, kPart);
    if (text_.size() >= kPart) encode(false);
  }
}

void DocumentEncoder::finish() {
  encode(true);
  flush();
}

void DocumentEncoder::flush() {
  sink_(tokens_);
  tokens_.clear();
}

void DocumentEncoder::encode(bool last) {
  const std::size_t done = tokenizer_->encode_part(text_, last, tokens_);
  text_.erase(0, done);
  // Documents may be short: not a call of the sink for each.
  if (!last || tokens_.size() >= kPart) flush();
}

}  // namespace rode::lab
