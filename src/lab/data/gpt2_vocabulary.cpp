// SPDX-License-Identifier: Apache-2.0
// Reading GPT-2's encoder.json and vocab.bpe, which spell bytes as printable characters.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/file_io.h"
#include "lab/data/gpt2_tokenizer.h"
#include "lab/data/token_shard.h"

namespace rode::lab {
namespace {

constexpr std::string_view kOperation = "gpt2 tokenizer";
constexpr std::string_view kEndOfText = "<|endoftext|>";
constexpr std::string_view kRemedy =
    "take encoder.json and vocab.bpe of one and the same GPT-2 vocabulary";

std::string_view text_of(const FileMapping& mapping) {
  const auto bytes = mapping.bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The vocabulary's characters: a byte that prints stands for itself, the others take code
// points from 256 on, in order.
std::array<int, 512> byte_of_code() {
  std::array<int, 512> bytes;
  bytes.fill(-1);
  int next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const bool prints = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    bytes[static_cast<std::size_t>(prints ? byte : next++)] = byte;
  }
  return bytes;
}

// The bytes that a spelling stands for; empty where it holds a character that stands for none.
std::string bytes_of_spelling(std::string_view spelling) {
  static const std::array<int, 512> bytes = byte_of_code();
  std::string text;
  for (std::size_t i = 0; i < spelling.size();) {
    const auto lead = static_cast<unsigned char>(spelling[i]);
    std::size_t code = lead;
    std::size_t length = 1;
    if (lead >= 0x80) {  // all code points in use lie below 512: two bytes
      if ((lead & 0xE0U) != 0xC0U || i + 1 >= spelling.size()) return {};
      const auto trail = static_cast<unsigned char>(spelling[i + 1]);
      code = ((lead & 0x1FU) << 6U) | (trail & 0x3FU);
      length = 2;
    }
    if (code >= bytes.size() || bytes[code] < 0) return {};
    text += static_cast<char>(bytes[code]);
    i += length;
  }
  return text;
}

}  // namespace

Gpt2Tokenizer::Gpt2Tokenizer(const std::filesystem::path& folder) {
  const TokenOf token_of = read_encoder(folder / "encoder.json");
  read_merges(folder / "vocab.bpe", token_of);
}

Gpt2Tokenizer::TokenOf Gpt2Tokenizer::read_encoder(const std::filesystem::path& path) {
  const FileMapping mapping(path, kOperation);
  const auto fail = [&](std::string_view what) {
    return file_error(kOperation, path.string(), fmt::format("{}; {}", what, kRemedy));
  };
  const auto json = nlohmann::json::parse(text_of(mapping), nullptr, false);
  if (!json.is_object() || json.empty()) throw fail("is not a JSON object of tokens");
  if (json.size() > static_cast<std::size_t>(kMaxVocabSize)) {
    throw fail(fmt::format("holds {} tokens; expected at most {}", json.size(), kMaxVocabSize));
  }
  TokenOf token_of;
  bytes_of_.resize(json.size());
  bool ends = false;
  for (const auto& [spelling, number] : json.items()) {
    if (!number.is_number_unsigned() || number.get<std::uint64_t>() >= json.size()) {
      throw fail(fmt::format("gives '{}' no number below {}", printable(spelling), json.size()));
    }
    const auto token = number.get<std::uint16_t>();
    std::string bytes = bytes_of_spelling(spelling);
    if (bytes.empty() || !bytes_of_[token].empty()) {
      throw fail(fmt::format("'{}' is no spelling of bytes, or shares its number {}",
                             printable(spelling), token));
    }
    if (spelling == kEndOfText) {
      end_of_text_ = token;
      ends = true;
    }
    bytes_of_[token] = bytes;
    token_of.emplace(std::move(bytes), token);
  }
  if (!ends) throw fail(fmt::format("has no '{}'", kEndOfText));
  for (std::size_t byte = 0; byte < byte_token_.size(); ++byte) {
    const auto found = token_of.find(std::string(1, static_cast<char>(byte)));
    if (found == token_of.end()) throw fail(fmt::format("has no token for the byte {}", byte));
    byte_token_[byte] = found->second;
  }
  return token_of;
}

void Gpt2Tokenizer::read_merges(const std::filesystem::path& path, const TokenOf& token_of) {
  const FileMapping mapping(path, kOperation);
  const std::string_view text = text_of(mapping);
  std::uint32_t rank = 0;
  std::size_t line_number = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = text.substr(at, end - at);
    at = end + 1;
    ++line_number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || (line_number == 1 && line.starts_with("#version"))) continue;
    const std::size_t blank = line.find(' ');
    const auto token = [&](const std::string& bytes) {
      const auto found = token_of.find(bytes);
      return found == token_of.end() || bytes.empty() ? -1 : static_cast<int>(found->second);
    };
    std::string left;
    std::string right;
    if (blank != std::string_view::npos) {
      left = bytes_of_spelling(line.substr(0, blank));
      right = bytes_of_spelling(line.substr(blank + 1));
    }
    const int a = token(left);
    const int b = token(right);
    const int merged = token(left + right);
    if (a < 0 || b < 0 || merged < 0) {
      throw file_error(kOperation, path.string(),
                       fmt::format("line {}: '{}' does not merge two tokens of encoder.json into a "
                                   "third; {}",
                                   line_number, printable(line), kRemedy));
    }
    const auto key = (static_cast<std::uint32_t>(a) << 16U) | static_cast<std::uint32_t>(b);
    merges_.try_emplace(key, Merge{rank++, static_cast<std::uint16_t>(merged)});
  }
}

}  // namespace rode::lab
