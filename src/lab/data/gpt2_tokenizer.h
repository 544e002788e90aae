// SPDX-License-Identifier: Apache-2.0
// GPT-2's byte-pair encoding (Radford et al. 2019), from its two vocabulary files.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lab/data/tokenizer.h"

namespace rode::lab {

// Each piece of the text (pretokenizer.h) starts as bytes; the neighbouring pair that comes
// first in vocab.bpe is merged, the leftmost of equals first, until no pair is in the list.
class Gpt2Tokenizer : public Tokenizer {
 public:
  // `folder` holds encoder.json (token text to number) and vocab.bpe (merges in their order).
  explicit Gpt2Tokenizer(const std::filesystem::path& folder);

  std::string_view name() const override { return "gpt2"; }
  std::int64_t vocab_size() const override { return static_cast<std::int64_t>(bytes_of_.size()); }
  std::uint16_t end_of_text() const override { return end_of_text_; }
  void encode(std::string_view text, std::vector<std::uint16_t>& tokens) override;
  std::string decode(std::span<const std::uint16_t> tokens) const override;

 private:
  struct Merge {
    std::uint32_t rank = 0;
    std::uint16_t token = 0;
  };
  struct Hash {
    using is_transparent = void;  // looked up by a view, without a copy
    std::size_t operator()(std::string_view text) const {
      return std::hash<std::string_view>()(text);
    }
  };
  using TokenOf = std::unordered_map<std::string, std::uint16_t, Hash, std::equal_to<>>;

  TokenOf read_encoder(const std::filesystem::path& path);
  void read_merges(const std::filesystem::path& path, const TokenOf& token_of);
  const Merge* merge_of(std::uint16_t left, std::uint16_t right) const;
  void merge_piece(std::string_view piece, std::vector<std::uint16_t>& tokens) const;

  std::array<std::uint16_t, 256> byte_token_{};
  std::vector<std::string> bytes_of_;                // by token
  std::unordered_map<std::uint32_t, Merge> merges_;  // by left * 65536 + right
  std::uint16_t end_of_text_ = 0;

  // Pieces repeat: most of a text is encoded from here. Values are ranges of cached_.
  std::unordered_map<std::string, std::pair<std::size_t, std::size_t>, Hash, std::equal_to<>>
      cache_;
  std::vector<std::uint16_t> cached_;
};

}  // namespace rode::lab
