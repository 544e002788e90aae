// SPDX-License-Identifier: Apache-2.0
// GPT-2's byte-pair encoding (Radford et al. 2019), from its two vocabulary files.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lab/text/tokenizer.h"

namespace rode::lab {

// Each piece of the text (pretokenizer.h) starts as bytes; the neighbouring pair that comes
// first in vocab.bpe is merged, the leftmost of equals first, until no pair is in the list.
class Gpt2Tokenizer : public Tokenizer {
 public:
  // A piece that is longer, and has no end yet, is encoded as far as its end cannot matter.
  static constexpr std::size_t kWindow = 1U << 18U;

  // `folder` holds encoder.json (token text to number) and vocab.bpe (merges in their order). They
  // must fit together: each merge makes the entry of its rank, and there is one for every entry
  // that is neither a byte nor special.
  explicit Gpt2Tokenizer(const std::filesystem::path& folder);
  // The same from the files' texts.
  Gpt2Tokenizer(std::string_view encoder, std::string_view merges, std::size_t window = kWindow);

  std::string_view name() const override { return "gpt2"; }
  std::int64_t vocab_size() const override { return static_cast<std::int64_t>(bytes_of_.size()); }
  Token end_of_text() const override { return end_of_text_; }
  std::size_t encode_part(std::string_view text, bool last, std::vector<Token>& tokens) override;
  std::string decode(std::span<const Token> tokens) const override;
  // Files that are not those that OpenAI published, with both digests.
  std::vector<std::string> notes() const override { return notes_; }

 private:
  struct Merge {
    std::uint32_t rank = 0;
    Token token = 0;
  };
  struct Hash {
    using is_transparent = void;  // looked up by a view, without a copy
    std::size_t operator()(std::string_view text) const {
      return std::hash<std::string_view>()(text);
    }
  };
  using TokenOf = std::unordered_map<std::string, Token, Hash, std::equal_to<>>;

  TokenOf read_encoder(std::string_view text, const std::string& source);
  void read_merges(std::string_view text, const TokenOf& token_of, const std::string& source);
  const Merge* merge_of(Token left, Token right) const;
  void encode_piece(std::string_view piece, std::vector<Token>& tokens);
  std::size_t encode_start(std::string_view start, std::vector<Token>& tokens) const;
  bool stays_apart(Token left, Token right) const;
  void merge_piece(std::string_view piece, std::vector<Token>& tokens) const;

  std::array<Token, 256> byte_token_{};
  std::vector<std::string> bytes_of_;                // by token
  std::unordered_map<std::uint64_t, Merge> merges_;  // by left * 2^32 + right
  std::vector<Token> made_;                          // by a merge, in the order of their numbers
  std::size_t special_ = 0;                          // entries that are neither bytes nor made
  std::size_t longest_ = 1;                          // bytes of a token that is not special
  std::size_t window_ = kWindow;
  Token end_of_text_ = 0;
  std::vector<std::string> notes_;

  // Pieces repeat: most of a text is encoded from here. Values are ranges of cached_.
  std::unordered_map<std::string, std::pair<std::size_t, std::size_t>, Hash, std::equal_to<>>
      cache_;
  std::vector<Token> cached_;
};

}  // namespace rode::lab
