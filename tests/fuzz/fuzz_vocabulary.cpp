// SPDX-License-Identifier: Apache-2.0
// Fuzzes GPT-2 vocabularies: two files give a tokenizer that reproduces any text, whole or in
// parts, or an Error.
//
// The input is encoder.json and vocab.bpe with a zero byte between them. The text to encode
// consists of the input's own bytes.
#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "fuzz/fuzz_target.h"
#include "fuzz/require.h"
#include "lab/text/gpt2_tokenizer.h"

namespace {

using fuzz::require;
using rode::lab::Gpt2Tokenizer;
using rode::lab::Token;

constexpr std::size_t kWindow = 64;

void check_texts(Gpt2Tokenizer& tokenizer, std::string_view text) {
  std::vector<Token> whole;
  tokenizer.encode(text, whole);
  require(tokenizer.decode(whole) == text, "text is not given back");
  for (const Token token : whole) {
    require(token < tokenizer.vocab_size(), "a token beyond the vocabulary");
  }
  std::vector<Token> parts;
  std::string kept;
  constexpr std::size_t kPart = 50;
  for (std::size_t at = 0; at < text.size(); at += kPart) {
    kept += text.substr(at, kPart);
    kept.erase(0, tokenizer.encode_part(kept, false, parts));
  }
  tokenizer.encode_part(kept, true, parts);
  require(parts == whole, "text in parts has other tokens");
}

// The printable character that stands for a byte in the files, as UTF-8.
std::string spelled(unsigned byte) {
  unsigned code = byte;
  if (byte <= 32) {
    code = 256 + byte;
  } else if (byte >= 127 && byte <= 160) {
    code = 256 + 33 + byte - 127;
  } else if (byte == 173) {
    code = 256 + 67;
  }
  if (code < 128) return {static_cast<char>(code)};
  return {static_cast<char>(0xC0U | (code >> 6U)), static_cast<char>(0x80U | (code & 0x3FU))};
}

std::string vocabulary(const std::vector<std::array<std::string, 2>>& merges) {
  nlohmann::ordered_json encoder;
  unsigned next = 0;
  for (unsigned byte = 0; byte < 256; ++byte) encoder[spelled(byte)] = next++;
  std::string lines = "#version: 0.2\n";
  for (const auto& [left, right] : merges) {
    encoder[left + right] = next++;
    lines += left + " " + right + "\n";
  }
  encoder["<|endoftext|>"] = next;
  return encoder.dump() + '\0' + lines;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size > 16384) return 0;  // longer ones only cost time
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::size_t cut = std::min(input.find('\0'), size);
  const std::string_view merges = input.substr(std::min(cut + 1, size));
  fuzz::succeeds([&] {
    Gpt2Tokenizer tokenizer(input.substr(0, cut), merges, kWindow);
    check_texts(tokenizer, merges);
    check_texts(tokenizer, input.substr(size / 2, 300));
    check_texts(tokenizer, std::string(300, merges.empty() ? 'a' : merges.back()));
  });
  return 0;
}

std::vector<std::string> fuzz_seeds() {
  return {vocabulary({}), vocabulary({{"a", "a"}, {"aa", "a"}, {"b", "c"}, {"aa", "bc"}}),
          vocabulary({{"e", "r"}, {"Ġ", "t"}, {"Ġt", "h"}, {"Ġth", "er"}, {"o", "n"}, {"Ċ", "Ċ"}})};
}
