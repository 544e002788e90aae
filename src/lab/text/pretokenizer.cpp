// SPDX-License-Identifier: Apache-2.0
// GPT-2's pieces by hand: character classes from tables, one pass without backtracking.
#include "lab/text/pretokenizer.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "lab/text/unicode_ranges.h"

namespace rode::lab {
namespace {

enum class Kind : std::uint8_t { other, letter, number, space };

constexpr std::array<CodeRange, 10> kSpaces = {{{0x9, 0xD},
                                                {0x20, 0x20},
                                                {0x85, 0x85},
                                                {0xA0, 0xA0},
                                                {0x1680, 0x1680},
                                                {0x2000, 0x200A},
                                                {0x2028, 0x2029},
                                                {0x202F, 0x202F},
                                                {0x205F, 0x205F},
                                                {0x3000, 0x3000}}};

bool contains(std::span<const CodeRange> ranges, std::uint32_t code) {
  const auto after = std::upper_bound(
      ranges.begin(), ranges.end(), code,
      [](std::uint32_t value, const CodeRange& range) { return value < range.first; });
  return after != ranges.begin() && code <= std::prev(after)->last;
}

// The first plane as a table: a search per character would take most of the time.
constexpr std::uint32_t kPlane = 0x10000;

std::vector<Kind> first_plane() {
  std::vector<Kind> kinds(kPlane, Kind::other);
  const auto fill = [&](std::span<const CodeRange> ranges, Kind kind) {
    for (const CodeRange& range : ranges) {
      for (std::uint32_t code = range.first; code <= range.last && code < kPlane; ++code) {
        kinds[code] = kind;
      }
    }
  };
  fill(kLetters, Kind::letter);
  fill(kNumbers, Kind::number);
  fill(kSpaces, Kind::space);
  return kinds;
}

Kind kind_of(std::uint32_t code) {
  static const std::vector<Kind> kinds = first_plane();
  if (code < kPlane) return kinds[code];
  if (contains(kLetters, code)) return Kind::letter;
  return contains(kNumbers, code) ? Kind::number : Kind::other;
}

struct Character {
  Kind kind = Kind::other;
  std::size_t bytes = 0;  // 0 at the end of the text
};

// Valid UTF-8 only: no overlong form, no surrogate, nothing beyond U+10FFFF.
Character character_at(std::string_view text, std::size_t at) {
  if (at >= text.size()) return {};
  const auto byte = [&](std::size_t offset) {
    return static_cast<std::uint32_t>(static_cast<unsigned char>(text[at + offset]));
  };
  const std::uint32_t lead = byte(0);
  if (lead < 0x80) return {kind_of(lead), 1};
  const std::size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() - at < length) return {Kind::other, 1};
  std::uint32_t code = lead & (0x7FU >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0U) != 0x80U) return {Kind::other, 1};
    code = (code << 6U) | (byte(i) & 0x3FU);
  }
  constexpr std::array<std::uint32_t, 5> kSmallest = {0, 0, 0x80, 0x800, 0x10000};
  const bool valid =
      code >= kSmallest[length] && code <= 0x10FFFF && (code < 0xD800 || code > 0xDFFF);
  return valid ? Character{kind_of(code), length} : Character{Kind::other, 1};
}

// The length of an English contraction at `at`, or 0.
std::size_t contraction(std::string_view text, std::size_t at) {
  if (text[at] != '\'' || at + 1 >= text.size()) return 0;
  switch (text[at + 1]) {
    case 's':
    case 't':
    case 'm':
    case 'd': return 2;
    default: break;
  }
  const std::string_view two = text.substr(at + 1, 2);
  return two == "re" || two == "ve" || two == "ll" ? 3 : 0;
}

std::size_t run_end(std::string_view text, std::size_t at, Kind kind) {
  for (Character c = character_at(text, at); c.bytes > 0 && c.kind == kind;
       c = character_at(text, at)) {
    at += c.bytes;
  }
  return at;
}

}  // namespace

std::size_t character_bytes(std::string_view text, std::size_t at) {
  return character_at(text, at).bytes;
}

std::size_t piece_end(std::string_view text, std::size_t begin) {
  if (const std::size_t length = contraction(text, begin); length > 0) return begin + length;
  // A single blank belongs to the run of letters, numbers or signs after it.
  const std::size_t start = text[begin] == ' ' ? begin + 1 : begin;
  const Character first = character_at(text, start);
  if (first.bytes > 0 && first.kind != Kind::space) {
    return run_end(text, start + first.bytes, first.kind);
  }
  // A run of spaces leaves its last character to what follows, if it has another.
  std::size_t last = begin;
  std::size_t at = begin;
  for (Character c = character_at(text, at); c.bytes > 0 && c.kind == Kind::space;
       c = character_at(text, at)) {
    last = at;
    at += c.bytes;
  }
  return at == text.size() || last == begin ? at : last;
}

}  // namespace rode::lab
