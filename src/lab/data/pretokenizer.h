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

}  // namespace rode::lab
