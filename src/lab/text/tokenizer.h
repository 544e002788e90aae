// SPDX-License-Identifier: Apache-2.0
// Text to tokens and back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace rode::lab {

// The number of an entry of a vocabulary; shards hold it in 16 bits where those are enough.
using Token = std::uint32_t;

// Any bytes can be encoded, valid UTF-8 or not, and decode(encode(text)) is the text. An object
// serves one thread at a time: it may keep a cache.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual std::string_view name() const = 0;
  virtual std::int64_t vocab_size() const = 0;
  virtual Token end_of_text() const = 0;
  // Appends the tokens of the beginning of `text`, as far as they do not depend on what may follow
  // it, and returns the number of bytes that they stand for; of the whole text where it is the
  // `last` part. The rest is to be given again, with more after it. Text that spells a special
  // token is text.
  virtual std::size_t encode_part(std::string_view text, bool last, std::vector<Token>& tokens) = 0;
  // Appends.
  void encode(std::string_view text, std::vector<Token>& tokens) {
    encode_part(text, true, tokens);
  }
  virtual std::string decode(std::span<const Token> tokens) const = 0;
  // Messages for the user about the vocabulary, one line each.
  virtual std::vector<std::string> notes() const { return {}; }
};

// One token per byte, and 256 for the end of a text.
class ByteTokenizer : public Tokenizer {
 public:
  std::string_view name() const override { return "bytes"; }
  std::int64_t vocab_size() const override { return 257; }
  Token end_of_text() const override { return 256; }
  std::size_t encode_part(std::string_view text, bool last, std::vector<Token>& tokens) override;
  std::string decode(std::span<const Token> tokens) const override;
};

// "bytes", or "gpt2" with the folder of encoder.json and vocab.bpe.
std::unique_ptr<Tokenizer> make_tokenizer(std::string_view name,
                                          const std::filesystem::path& vocabulary);

}  // namespace rode::lab
