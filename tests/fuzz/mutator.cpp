// SPDX-License-Identifier: Apache-2.0
// Seeded mutations of fuzz inputs: bytes, integers at their limits, JSON tokens, splices.
#include "fuzz/mutator.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

namespace fuzz {
namespace {

constexpr std::size_t kLongestInput = 1U << 16U;
constexpr std::size_t kLargestPool = 512;
constexpr std::size_t kLengthBytes = 8;

constexpr std::array<std::uint64_t, 18> kBoundaries{0,
                                                    1,
                                                    2,
                                                    3,
                                                    7,
                                                    8,
                                                    9,
                                                    127,
                                                    255,
                                                    256,
                                                    65535,
                                                    65536,
                                                    100'000'000,
                                                    100'000'001,
                                                    0x7fffffffULL,
                                                    0x100000000ULL,
                                                    0x7fffffffffffffffULL,
                                                    ~0ULL};

constexpr std::array<std::string_view, 20> kNumberTexts{"0",
                                                        "1",
                                                        "2",
                                                        "4",
                                                        "8",
                                                        "9",
                                                        "-1",
                                                        "-0",
                                                        "1.0",
                                                        "1e3",
                                                        "1e999",
                                                        "4294967296",
                                                        "2147483648",
                                                        "4611686018427387904",
                                                        "9223372036854775807",
                                                        "9223372036854775808",
                                                        "18446744073709551615",
                                                        "18446744073709551616",
                                                        "nan",
                                                        "inf"};

// Words of the safetensors header and of option texts.
constexpr std::array<std::string_view, 48> kTokens{"{",
                                                   "}",
                                                   "[",
                                                   "]",
                                                   ",",
                                                   ":",
                                                   "\"",
                                                   "=",
                                                   " ",
                                                   "null",
                                                   "true",
                                                   "false",
                                                   "\"dtype\"",
                                                   "\"shape\"",
                                                   "\"data_offsets\"",
                                                   "\"__metadata__\"",
                                                   "\"F64\"",
                                                   "\"F32\"",
                                                   "\"F16\"",
                                                   "\"BF16\"",
                                                   "\"I64\"",
                                                   "\"I32\"",
                                                   "\"I16\"",
                                                   "\"I8\"",
                                                   "\"U64\"",
                                                   "\"U8\"",
                                                   "\"BOOL\"",
                                                   "\"\"",
                                                   "{}",
                                                   "[]",
                                                   "[0,0]",
                                                   "\\u0000",
                                                   "\\ud800",
                                                   "\\n",
                                                   "lr=",
                                                   "momentum=",
                                                   "betas=",
                                                   "radius=",
                                                   "learned",
                                                   "adaptive",
                                                   "fixed",
                                                   "guarded",
                                                   "every",
                                                   "final",
                                                   "splits=",
                                                   "0.9,0.95",
                                                   "+",
                                                   "*"};

// The header length in the input, if it is plausible: text inputs have none.
std::optional<std::uint64_t> header_length(const std::string& input) {
  if (input.size() < kLengthBytes) return std::nullopt;
  std::uint64_t length = 0;
  std::memcpy(&length, input.data(), kLengthBytes);
  if (length > input.size() - kLengthBytes) return std::nullopt;
  return length;
}

}  // namespace

Mutator::Mutator(std::uint64_t seed, std::vector<std::string> corpus)
    : engine_(seed), corpus_(std::move(corpus)) {
  if (corpus_.empty()) corpus_.emplace_back();
  seeds_ = corpus_.size();
}

std::string Mutator::next() {
  // Mostly from the seeds: inputs with many mutations are soon refused at their first byte.
  std::string input = below(4) == 0 ? member() : corpus_[below(seeds_)];
  const auto length = header_length(input);
  const std::size_t size = input.size();
  do {
    mutate_once(input);
  } while (below(2) == 0);
  // A header that grew or shrank mostly gets its new length: otherwise almost every mutation would
  // fail the first check and never reach the code after it.
  if (length && input.size() != size && input.size() >= kLengthBytes && below(4) != 0) {
    const std::uint64_t adjusted = *length + (input.size() - size);
    std::memcpy(input.data(), &adjusted, kLengthBytes);
  }
  if (input.size() > kLongestInput) input.resize(kLongestInput);
  // Some results become starting points, so that mutations add up over the run.
  if (below(64) == 0) {
    if (corpus_.size() < seeds_ + kLargestPool) {
      corpus_.push_back(input);
    } else {
      corpus_[seeds_ + below(kLargestPool)] = input;
    }
  }
  return input;
}

// Mostly after the length field, which has its own mutation.
std::size_t Mutator::position(const std::string& input) {
  if (header_length(input) && input.size() > kLengthBytes && below(8) != 0) {
    return kLengthBytes + below(input.size() - kLengthBytes);
  }
  return below(input.size() + 1);
}

void Mutator::mutate_once(std::string& input) {
  using Mutation = void (Mutator::*)(std::string&);
  static constexpr std::array<Mutation, 10> kMutations{
      &Mutator::flip_bit,      &Mutator::replace_byte,      &Mutator::insert_bytes,
      &Mutator::erase_bytes,   &Mutator::repeat_block,      &Mutator::splice,
      &Mutator::patch_integer, &Mutator::patch_number_text, &Mutator::patch_header_length,
      &Mutator::swap_token};
  (this->*kMutations[below(kMutations.size())])(input);
}

void Mutator::flip_bit(std::string& input) {
  const std::size_t at = position(input);
  if (at < input.size()) input[at] = static_cast<char>(input[at] ^ (1 << below(8)));
}

void Mutator::replace_byte(std::string& input) {
  const std::size_t at = position(input);
  if (at < input.size()) input[at] = static_cast<char>(engine_() & 0xFFU);
}

void Mutator::insert_bytes(std::string& input) {
  std::string bytes(1 + below(8), '\0');
  for (char& c : bytes) c = static_cast<char>(engine_() & 0xFFU);
  input.insert(position(input), bytes);
}

void Mutator::erase_bytes(std::string& input) { input.erase(position(input), 1 + below(16)); }

void Mutator::repeat_block(std::string& input) {
  const std::string block = input.substr(position(input), 1 + below(64));
  const std::size_t at = position(input);
  for (std::size_t i = 1 + below(4); i > 0 && input.size() < kLongestInput; --i) {
    input.insert(at, block);
  }
}

void Mutator::splice(std::string& input) {
  const std::string& other = member();
  const std::size_t from = position(other);
  const std::size_t at = position(input);
  if (below(2) == 0) {
    input = input.substr(0, at) + other.substr(from);
  } else {
    input.insert(at, other, from, 1 + below(64));
  }
}

void Mutator::patch_integer(std::string& input) {
  const std::size_t width = std::size_t{1} << below(4);
  const std::size_t at = position(input);
  if (input.size() < width || at > input.size() - width) return;
  const std::uint64_t value = kBoundaries[below(kBoundaries.size())];
  std::memcpy(input.data() + at, &value, width);
}

// Replaces one run of digits, as numbers in JSON and in options are text.
void Mutator::patch_number_text(std::string& input) {
  const auto is_digit = [](char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; };
  const auto from = input.begin() + static_cast<std::ptrdiff_t>(position(input));
  const auto first = std::find_if(from, input.end(), is_digit);
  if (first == input.end()) return;
  const auto last = std::find_if_not(first, input.end(), is_digit);
  if (below(4) == 0) {
    *first = static_cast<char>('0' + below(10));
  } else {
    input.replace(first, last, kNumberTexts[below(kNumberTexts.size())]);
  }
}

void Mutator::patch_header_length(std::string& input) {
  const auto length = header_length(input);
  if (!length) return;
  const std::array<std::uint64_t, 6> candidates{*length + 1,
                                                *length - 1,
                                                input.size() - kLengthBytes,
                                                input.size() - kLengthBytes + 1,
                                                input.size(),
                                                kBoundaries[below(kBoundaries.size())]};
  const std::uint64_t value = candidates[below(candidates.size())];
  std::memcpy(input.data(), &value, kLengthBytes);
}

// Replaces a token with another, or inserts one between two.
void Mutator::swap_token(std::string& input) {
  const std::string_view token = kTokens[below(kTokens.size())];
  for (int attempt = 0; attempt < 8; ++attempt) {
    const std::string_view old = kTokens[below(kTokens.size())];
    const std::size_t at = input.find(old, position(input));
    if (at == std::string::npos) continue;
    input.replace(at, old.size(), token);
    return;
  }
  input.insert(position(input), token);
}

}  // namespace fuzz
