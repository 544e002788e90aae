// SPDX-License-Identifier: Apache-2.0
// Reading GPT-2's encoder.json and vocab.bpe, which spell bytes as printable characters.
#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/file_io.h"
#include "lab/base/sha256.h"
#include "lab/text/gpt2_tokenizer.h"
#include "lab/text/token_shard.h"

namespace rode::lab {
namespace {

constexpr std::string_view kReadVocabulary = "gpt2 tokenizer";
constexpr std::string_view kEndOfText = "<|endoftext|>";
constexpr std::string_view kVocabularyRemedy =
    "use encoder.json and vocab.bpe of the same GPT-2 vocabulary";

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
      if (lead < 0xC2 || (trail & 0xC0U) != 0x80U) return {};
      code = ((lead & 0x1FU) << 6U) | (trail & 0x3FU);
      length = 2;
    }
    if (code >= bytes.size() || bytes[code] < 0) return {};
    text += static_cast<char>(bytes[code]);
    i += length;
  }
  return text;
}

// As OpenAI published them: openaipublic.blob.core.windows.net/gpt-2/encodings/main.
constexpr std::string_view kEncoderDigest =
    "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783";
constexpr std::string_view kMergesDigest =
    "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5";

void note_digest(const FileMapping& file, std::string_view name, std::string_view known,
                 std::vector<std::string>& notes) {
  Sha256 sum;
  sum.update(file.bytes());
  if (const std::string digest = sum.hex(); digest != known) {
    notes.push_back(
        fmt::format("{} is not GPT-2's own (sha256 {}, GPT-2's is {}): its tokens are "
                    "not those of GPT-2",
                    name, digest, known));
  }
}

// "<|endoftext|>" and its like, which no merge makes.
bool is_special(std::string_view spelling) {
  return spelling.size() > 4 && spelling.starts_with("<|") && spelling.ends_with("|>");
}

}  // namespace

Gpt2Tokenizer::Gpt2Tokenizer(const std::filesystem::path& folder) {
  const std::filesystem::path encoder_path = folder / "encoder.json";
  const std::filesystem::path merges_path = folder / "vocab.bpe";
  const FileMapping encoder(encoder_path, kReadVocabulary);
  const FileMapping merges(merges_path, kReadVocabulary);
  const TokenOf token_of = read_encoder(text_of(encoder), encoder_path.string());
  read_merges(text_of(merges), token_of, merges_path.string());
  note_digest(encoder, "encoder.json", kEncoderDigest, notes_);
  note_digest(merges, "vocab.bpe", kMergesDigest, notes_);
}

Gpt2Tokenizer::Gpt2Tokenizer(std::string_view encoder, std::string_view merges, std::size_t window)
    : window_(window) {
  read_merges(merges, read_encoder(encoder, "encoder.json"), "vocab.bpe");
}

Gpt2Tokenizer::TokenOf Gpt2Tokenizer::read_encoder(std::string_view text,
                                                   const std::string& source) {
  const auto fail = [&](std::string_view what) {
    return file_error(kReadVocabulary, source, fmt::format("{}; {}", what, kVocabularyRemedy));
  };
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object() || json.empty()) throw fail("is not a JSON object of tokens");
  if (json.size() > static_cast<std::size_t>(kMaxVocabSize)) {
    throw fail(fmt::format("holds {} tokens; expected at most {}", json.size(), kMaxVocabSize));
  }
  TokenOf token_of;
  bytes_of_.resize(json.size());
  bool ends = false;
  for (const auto& [spelling, number] : json.items()) {
    if (!number.is_number_unsigned() || number.get<std::uint64_t>() >= json.size()) {
      throw fail(
          fmt::format("does not give '{}' a number below {}", printable(spelling), json.size()));
    }
    const auto token = number.get<Token>();
    std::string bytes = bytes_of_spelling(spelling);
    if (bytes.empty() || !bytes_of_[token].empty()) {
      throw fail(fmt::format("'{}' is not a spelling of bytes, or shares its number {}",
                             printable(spelling), token));
    }
    if (spelling == kEndOfText) {
      end_of_text_ = token;
      ends = true;
    }
    bytes_of_[token] = bytes;
    if (is_special(spelling)) {
      ++special_;
      continue;
    }
    if (bytes.size() > 1) made_.push_back(token);
    longest_ = std::max(longest_, bytes.size());
    token_of.emplace(std::move(bytes), token);
  }
  if (!ends) throw fail(fmt::format("has no '{}'", kEndOfText));
  for (std::size_t byte = 0; byte < byte_token_.size(); ++byte) {
    const auto found = token_of.find(std::string(1, static_cast<char>(byte)));
    if (found == token_of.end()) throw fail(fmt::format("has no token for the byte {}", byte));
    byte_token_[byte] = found->second;
  }
  std::sort(made_.begin(), made_.end());
  return token_of;
}

void Gpt2Tokenizer::read_merges(std::string_view text, const TokenOf& token_of,
                                const std::string& source) {
  const auto fail = [&](std::string_view what) {
    return file_error(kReadVocabulary, source, fmt::format("{}; {}", what, kVocabularyRemedy));
  };
  const auto token = [&](const std::string& bytes) {
    const auto found = token_of.find(bytes);
    return found == token_of.end() ? std::int64_t{-1} : std::int64_t{found->second};
  };
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
    std::string left;
    std::string right;
    if (blank != std::string_view::npos) {
      left = bytes_of_spelling(line.substr(0, blank));
      right = bytes_of_spelling(line.substr(blank + 1));
    }
    const std::int64_t a = token(left);
    const std::int64_t b = token(right);
    const std::int64_t merged = token(left + right);
    if (a < 0 || b < 0 || merged < 0) {
      throw fail(fmt::format("line {}: '{}' does not merge two tokens of encoder.json into a third",
                             line_number, printable(line)));
    }
    // Numbers follow the merges: whatever was swapped, removed or put in between shows here.
    if (rank == made_.size() || merged != made_[rank]) {
      throw fail(fmt::format(
          "line {}: '{}' produces the token {}; expected the merge that produces {}, "
          "the next of encoder.json; the merges are out of order, or one is missing or added",
          line_number, printable(line), merged,
          rank == made_.size() ? "none" : fmt::format("{}", made_[rank])));
    }
    const auto made_before = [&](std::int64_t part, const std::string& bytes) {
      return bytes.size() == 1 || part < merged;
    };
    if (!made_before(a, left) || !made_before(b, right)) {
      throw fail(fmt::format("line {}: '{}' merges a token that a later line produces", line_number,
                             printable(line)));
    }
    const auto key = (static_cast<std::uint64_t>(a) << 32U) | static_cast<std::uint64_t>(b);
    merges_.emplace(key, Merge{rank++, static_cast<Token>(merged)});
  }
  if (rank != made_.size()) {
    throw fail(
        fmt::format("holds {} merges; expected {}: encoder.json has {} entries, of which "
                    "256 are bytes and {} special, and the others need a merge each; the "
                    "file was cut short",
                    rank, made_.size(), bytes_of_.size(), special_));
  }
}

}  // namespace rode::lab
