// SPDX-License-Identifier: Apache-2.0
// The start of a piece that is too long to be merged as a whole, exactly as the whole would give
// it.
//
// Write E(x) for the tokens of a piece x. Merges only use what earlier merges made, so x is merged
// rank by rank, each from left to right, and
//   (1) where no merge crosses a boundary of E(x), both sides are merged as if alone: E(x) cut
//       there is E(left), E(right);
//   (2) tokens of which every neighbouring pair (a, b) has E(ab) = a, b are the E of their text:
//       the first merge that crossed one of their boundaries would have crossed it in the pair
//       alone.
// Let the piece continue after the n bytes known, and no token be longer than L. Then E(piece) has
// a boundary q with n - L < q <= n, and begins with E(first q bytes), by (1). If a place s is a
// boundary of E(first q bytes) for all L candidates q, it is one of E(piece): the tokens before s
// are certain, and the rest is a piece of its own. For one q, by (2), s is such a place where the
// last token before s and the first of E(s to q) stay apart.
#include <algorithm>
#include <map>

#include "lab/text/gpt2_tokenizer.h"
#include "lab/text/pretokenizer.h"

namespace rode::lab {
namespace {

struct Cut {
  std::size_t at = 0;
  std::size_t tokens = 0;  // before it
};

}  // namespace

bool Gpt2Tokenizer::stays_apart(Token left, Token right) const {
  std::vector<Token> merged;
  merge_piece(bytes_of_[left] + bytes_of_[right], merged);
  return merged.size() == 2 && merged[0] == left && merged[1] == right;
}

std::size_t Gpt2Tokenizer::encode_start(std::string_view start, std::vector<Token>& tokens) const {
  constexpr std::size_t kFirstRest = 8;  // in longest tokens: most boundaries are settled by then
  constexpr std::size_t kFarther = 4;
  std::vector<Token> whole;
  merge_piece(start, whole);
  std::vector<Token> rest;
  for (std::size_t back = kFirstRest * longest_; back <= start.size() / 2; back *= kFarther) {
    // The last end of a token that leaves `back` bytes after it and where a character begins, so
    // that the rest is again one piece: of the same kind, and too long to be a contraction.
    Cut cut;
    std::size_t end = 0;        // of token i
    std::size_t character = 0;  // the first that begins at `end` or after it
    for (std::size_t i = 0; i < whole.size(); ++i) {
      end += bytes_of_[whole[i]].size();
      if (end + back > start.size()) break;
      while (character < end) character += character_bytes(start, character);
      if (character == end) cut = {end, i + 1};
    }
    if (cut.at == 0) return 0;
    std::map<Token, bool> apart;  // by the token after the cut
    const auto holds = [&](std::size_t q) {
      rest.clear();
      merge_piece(start.substr(cut.at, q - cut.at), rest);
      const auto [known, fresh] = apart.try_emplace(rest.front());
      if (fresh) known->second = stays_apart(whole[cut.tokens - 1], rest.front());
      return known->second;
    };
    bool certain = true;
    for (std::size_t i = 0; i < longest_ && certain; ++i) certain = holds(start.size() - i);
    if (!certain) continue;
    tokens.insert(tokens.end(), whole.begin(),
                  whole.begin() + static_cast<std::ptrdiff_t>(cut.tokens));
    return cut.at;
  }
  return 0;
}

}  // namespace rode::lab
