// SPDX-License-Identifier: Apache-2.0
// The byte tokenizer, and tokenizers by name.
#include "lab/text/tokenizer.h"

#include <fmt/format.h>

#include "core/nearest.h"
#include "lab/text/gpt2_tokenizer.h"
#include "rode/error.h"

namespace rode::lab {

std::size_t ByteTokenizer::encode_part(std::string_view text, bool /*last*/,
                                       std::vector<Token>& tokens) {
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return text.size();
}

std::string ByteTokenizer::decode(std::span<const Token> tokens) const {
  std::string text;
  for (const Token token : tokens) {
    if (token < 256) text += static_cast<char>(token);
  }
  return text;
}

std::unique_ptr<Tokenizer> make_tokenizer(std::string_view name,
                                          const std::filesystem::path& vocabulary) {
  if (name == "bytes") return std::make_unique<ByteTokenizer>();
  if (name == "gpt2") return std::make_unique<Gpt2Tokenizer>(vocabulary);
  const std::vector<std::string> names = {"gpt2", "bytes"};
  throw Error(ErrorKind::invalid_argument, "tokenizer",
              fmt::format("unknown tokenizer '{}'; did you mean '{}'? expected gpt2 or bytes", name,
                          nearest(name, names)));
}

}  // namespace rode::lab
