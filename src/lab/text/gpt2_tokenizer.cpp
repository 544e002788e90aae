// SPDX-License-Identifier: Apache-2.0
// GPT-2's byte-pair encoding: merging, with a cache of pieces.
#include "lab/text/gpt2_tokenizer.h"

#include <queue>

#include <fmt/format.h>

#include "lab/text/pretokenizer.h"
#include "rode/error.h"

namespace rode::lab {
namespace {

// Longer pieces seldom come twice; a full cache stays as it is.
constexpr std::size_t kLongestCached = 32;
constexpr std::size_t kMostCached = 400'000;  // about 100 MB at the worst

// A symbol of a piece in a doubly linked list over positions.
struct Symbol {
  Token token = 0;
  bool alive = true;
  std::size_t previous = 0;
  std::size_t next = 0;
};

struct Candidate {
  std::uint32_t rank = 0;
  std::size_t at = 0;
  Token left = 0;  // what stood there when the candidate was made
  Token right = 0;
  Token token = 0;

  bool operator>(const Candidate& other) const {
    return rank != other.rank ? rank > other.rank : at > other.at;
  }
};

}  // namespace

const Gpt2Tokenizer::Merge* Gpt2Tokenizer::merge_of(Token left, Token right) const {
  const auto found = merges_.find((std::uint64_t{left} << 32U) | right);
  return found == merges_.end() ? nullptr : &found->second;
}

// A heap of candidates: n log n also for a piece of a million equal letters.
void Gpt2Tokenizer::merge_piece(std::string_view piece, std::vector<Token>& tokens) const {
  const std::size_t size = piece.size();
  std::vector<Symbol> symbols(size);
  for (std::size_t i = 0; i < size; ++i) {
    symbols[i] = {byte_token_[static_cast<unsigned char>(piece[i])], true, i - 1, i + 1};
  }
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto offer = [&](std::size_t at) {
    const std::size_t next = symbols[at].next;
    if (next >= size) return;
    const Token left = symbols[at].token;
    const Token right = symbols[next].token;
    if (const Merge* merge = merge_of(left, right)) {
      queue.push({merge->rank, at, left, right, merge->token});
    }
  };
  for (std::size_t i = 0; i + 1 < size; ++i) offer(i);
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Symbol& left = symbols[best.at];
    if (!left.alive || left.token != best.left || left.next >= size) continue;
    Symbol& right = symbols[left.next];
    if (right.token != best.right) continue;
    right.alive = false;
    left.token = best.token;
    left.next = right.next;
    if (left.next < size) symbols[left.next].previous = best.at;
    if (best.at > 0) offer(left.previous);
    offer(best.at);
  }
  for (std::size_t i = 0; i < size; i = symbols[i].next) tokens.push_back(symbols[i].token);
}

void Gpt2Tokenizer::encode_piece(std::string_view piece, std::vector<Token>& tokens) {
  if (const auto found = cache_.find(piece); found != cache_.end()) {
    const auto& [at, count] = found->second;
    for (std::size_t i = at; i < at + count; ++i) tokens.push_back(cached_[i]);
    return;
  }
  const std::size_t before = tokens.size();
  merge_piece(piece, tokens);
  if (piece.size() <= kLongestCached && cache_.size() < kMostCached) {
    cache_.emplace(piece, std::pair(cached_.size(), tokens.size() - before));
    cached_.insert(cached_.end(), tokens.begin() + static_cast<std::ptrdiff_t>(before),
                   tokens.end());
  }
}

std::size_t Gpt2Tokenizer::encode_part(std::string_view text, bool last,
                                       std::vector<Token>& tokens) {
  std::size_t begin = 0;
  while (begin < text.size()) {
    const std::size_t end = piece_end(text, begin);
    if (last || end + kPieceLookahead <= text.size()) {
      encode_piece(text.substr(begin, end - begin), tokens);
      begin = end;
      continue;
    }
    if (text.size() - begin < window_ + kPieceLookahead) break;
    const std::size_t certain = text.size() - kPieceLookahead - begin;
    const std::size_t done = encode_start(text.substr(begin, certain), tokens);
    if (done == 0) break;
    begin += done;
  }
  return begin;
}

std::string Gpt2Tokenizer::decode(std::span<const Token> tokens) const {
  std::string text;
  for (const Token token : tokens) {
    if (token >= bytes_of_.size()) {
      throw Error(ErrorKind::invalid_argument, "gpt2 tokenizer",
                  fmt::format("token {}; expected tokens below {}; decode with the vocabulary that "
                              "encoded them",
                              token, bytes_of_.size()));
    }
    text += bytes_of_[token];
  }
  return text;
}

}  // namespace rode::lab
