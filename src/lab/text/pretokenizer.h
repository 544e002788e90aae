// SPDX-License-Identifier: Apache-2.0
// GPT-2's cut of text into pieces, inside which bytes are merged.
#pragma once

#include <cstddef>
#include <string_view>

namespace rode::lab {

// The end of the piece that begins at `begin` (< text.size()). Pieces are the matches of
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// where \s is Unicode's White_Space. A byte that is not part of valid UTF-8 counts as one
// character that is neither space, letter nor number.
std::size_t piece_end(std::string_view text, std::size_t begin);

// An end with this many bytes of the text after it does not change, whatever follows the text: the
// character there is whole, and so is the one after it where the piece is of spaces. Where it has
// fewer after it, the piece reaches at least to that many bytes before the end of the text.
inline constexpr std::size_t kPieceLookahead = 8;

// Bytes of the character at `at` (< text.size()).
std::size_t character_bytes(std::string_view text, std::size_t at);

}  // namespace rode::lab
