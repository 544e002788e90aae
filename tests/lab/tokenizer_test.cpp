// SPDX-License-Identifier: Apache-2.0
// Tokenizers: GPT-2's pieces, merges in their order, any bytes there and back.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "lab/base/random.h"
#include "lab/base/sha256.h"
#include "lab/support.h"
#include "lab/text/gpt2_tokenizer.h"
#include "lab/text/pretokenizer.h"

namespace rode::lab {
namespace {

using Strings = std::vector<std::string>;

Strings pieces(std::string_view text) {
  Strings found;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = piece_end(text, at);
    found.emplace_back(text.substr(at, end - at));
    at = end;
  }
  return found;
}

TEST(Pieces, AreThoseOfGpt2) {
  EXPECT_EQ(pieces("Hello world"), (Strings{"Hello", " world"}));
  EXPECT_EQ(pieces("it's we'll 'quoted'"),
            (Strings{"it", "'s", " we", "'ll", " '", "quoted", "'"}));
  EXPECT_EQ(pieces("I'VE they've"), (Strings{"I", "'", "VE", " they", "'ve"}));
  EXPECT_EQ(pieces("'sound"), (Strings{"'s", "ound"}));
  EXPECT_EQ(pieces("abc123, 45!?"), (Strings{"abc", "123", ",", " 45", "!?"}));
  EXPECT_EQ(pieces("a  b"), (Strings{"a", " ", " b"}));
  EXPECT_EQ(pieces("a   "), (Strings{"a", "   "}));
  EXPECT_EQ(pieces("a\n\nb"), (Strings{"a", "\n", "\n", "b"}));
  EXPECT_EQ(pieces("a\n b"), (Strings{"a", "\n", " b"}));
  EXPECT_EQ(pieces(" \t x"), (Strings{" \t", " x"}));
  EXPECT_EQ(pieces(" "), (Strings{" "}));
}

TEST(Pieces, KnowUnicode) {
  EXPECT_EQ(pieces("naïve café"), (Strings{"naïve", " café"}));
  EXPECT_EQ(pieces("日本語123"), (Strings{"日本語", "123"}));
  EXPECT_EQ(pieces("x²½ Ⅷ"), (Strings{"x", "²½", " Ⅷ"}));        // No, Nl are numbers
  EXPECT_EQ(pieces("a\u00a0b"), (Strings{"a", "\u00a0", "b"}));  // a space, not a blank
  EXPECT_EQ(pieces("a\u2003\u2003b"), (Strings{"a", "\u2003", "\u2003", "b"}));
  EXPECT_EQ(pieces("हिन्दी"), (Strings{"ह", "ि", "न", "्", "द", "ी"}));  // marks are no letters
  EXPECT_EQ(pieces("𝔸𝟙 😀"), (Strings{"𝔸", "𝟙", " 😀"}));              // beyond the first plane
  EXPECT_EQ(pieces("\x1c"
                   "a"),
            (Strings{"\x1c", "a"}));  // no White_Space
}

TEST(Pieces, TakeInvalidBytesAsSigns) {
  EXPECT_EQ(pieces("a\xff\xfe z"), (Strings{"a", "\xff\xfe", " z"}));
  EXPECT_EQ(pieces("\xc3"), (Strings{"\xc3"}));
  EXPECT_EQ(pieces("\xc0\x80"
                   "a"),
            (Strings{"\xc0\x80", "a"}));  // overlong
  EXPECT_EQ(pieces("\xed\xa0\x80"
                   "a"),
            (Strings{"\xed\xa0\x80", "a"}));  // a surrogate
}

// The character by which the vocabulary files spell a byte, as UTF-8.
std::string spelled(const std::string& bytes) {
  std::string text;
  for (const char c : bytes) {
    const int byte = static_cast<unsigned char>(c);
    int code = byte;
    if (byte <= 32) {
      code = 256 + byte;
    } else if (byte >= 127 && byte <= 160) {
      code = 256 + 33 + byte - 127;
    } else if (byte == 173) {
      code = 256 + 67;
    }
    if (code < 128) {
      text += static_cast<char>(code);
    } else {
      text += static_cast<char>(0xC0 | (code >> 6));
      text += static_cast<char>(0x80 | (code & 0x3F));
    }
  }
  return text;
}

const std::vector<std::pair<std::string, std::string>> kMerges = {
    {"a", "a"},  {" ", "a"},  {"b", "c"},       {"aa", "aa"},  {"a", "b"},
    {"ab", "c"}, {" a", "b"}, {"\xc3", "\xa9"}, {"aaaa", "bc"}};

struct Texts {
  std::string encoder;
  std::string merges;
};

Texts vocabulary() {
  nlohmann::json encoder;
  int next = 0;
  for (int byte = 0; byte < 256; ++byte) {
    encoder[spelled(std::string(1, static_cast<char>(byte)))] = next++;
  }
  std::string merges = "#version: 0.2\n";
  for (const auto& [left, right] : kMerges) {
    encoder[spelled(left + right)] = next++;
    merges += spelled(left) + " " + spelled(right) + "\n";
  }
  encoder["<|endoftext|>"] = next;
  return {encoder.dump(), merges};
}

void write_vocabulary(const std::filesystem::path& folder) {
  const Texts texts = vocabulary();
  write_file(folder / "encoder.json", texts.encoder);
  write_file(folder / "vocab.bpe", texts.merges);
}

// By the definition: look for the first merge of the list that applies, apply it everywhere.
Strings merged_slowly(const std::string& piece) {
  Strings symbols;
  for (const char c : piece) symbols.emplace_back(1, c);
  for (;;) {
    bool changed = false;
    for (const auto& [left, right] : kMerges) {
      for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
        if (symbols[i] != left || symbols[i + 1] != right) continue;
        symbols[i] += right;
        symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(i) + 1);
        changed = true;
      }
      if (changed) break;
    }
    if (!changed) return symbols;
  }
}

TEST(Gpt2Tokenizer, MergesInTheOrderOfTheList) {
  const Scratch scratch;
  write_vocabulary(scratch.path());
  Gpt2Tokenizer tokenizer(scratch.path());
  EXPECT_EQ(tokenizer.vocab_size(), 256 + static_cast<int>(kMerges.size()) + 1);
  EXPECT_EQ(tokenizer.end_of_text(), tokenizer.vocab_size() - 1);
  Random random(11);
  for (int trial = 0; trial < 2000; ++trial) {
    std::string text;
    const std::uint64_t length = random.below(40);
    for (std::uint64_t i = 0; i < length; ++i) text += "aabc \xc3\xa9"[random.below(7)];
    Strings expected;
    for (const std::string& piece : pieces(text)) {
      for (const std::string& symbol : merged_slowly(piece)) expected.push_back(symbol);
    }
    std::vector<Token> tokens;
    tokenizer.encode(text, tokens);
    Strings symbols;
    for (const Token token : tokens) symbols.push_back(tokenizer.decode({&token, 1}));
    ASSERT_EQ(symbols, expected) << text;
  }
}

TEST(Gpt2Tokenizer, GivesAnyBytesBack) {
  const Scratch scratch;
  write_vocabulary(scratch.path());
  Gpt2Tokenizer gpt2(scratch.path());
  ByteTokenizer bytes;
  Random random(12);
  for (int trial = 0; trial < 500; ++trial) {
    std::string text;
    for (std::uint64_t i = random.below(60); i > 0; --i) {
      text += static_cast<char>(random.below(256));
    }
    for (Tokenizer* tokenizer : {static_cast<Tokenizer*>(&gpt2), static_cast<Tokenizer*>(&bytes)}) {
      std::vector<Token> tokens;
      tokenizer->encode(text, tokens);
      EXPECT_EQ(tokenizer->decode(tokens), text);
    }
  }
}

TEST(Gpt2Tokenizer, TakesALongPieceInItsStride) {
  const Scratch scratch;
  write_vocabulary(scratch.path());
  Gpt2Tokenizer tokenizer(scratch.path());
  std::vector<Token> tokens;
  tokenizer.encode(std::string(1'000'001, 'a'), tokens);  // quadratic work would not end
  EXPECT_EQ(tokens.size(), 250'001U);
}

TEST(Gpt2Tokenizer, TreatsSpecialSpellingAsText) {
  const Scratch scratch;
  write_vocabulary(scratch.path());
  Gpt2Tokenizer tokenizer(scratch.path());
  std::vector<Token> tokens;
  tokenizer.encode("<|endoftext|>", tokens);
  EXPECT_EQ(std::count(tokens.begin(), tokens.end(), tokenizer.end_of_text()), 0);
}

TEST(Gpt2Tokenizer, RefusesVocabulariesThatDoNotFitTogether) {
  const Scratch scratch;
  const auto message = [&] {
    return error_of([&] { const Gpt2Tokenizer tokenizer(scratch.path()); });
  };
  EXPECT_MENTIONS(message(), "encoder.json");
  write_vocabulary(scratch.path());
  EXPECT_EQ(message(), "");
  const std::string merges = read_file(scratch / "vocab.bpe");
  write_file(scratch / "vocab.bpe", merges + "q z\n");
  EXPECT_MENTIONS(message(), "line 11: 'q z'");
  write_file(scratch / "vocab.bpe", merges + "q\n");
  EXPECT_MENTIONS(message(), "line 11");
  write_file(scratch / "encoder.json", R"({"a": 0, "b": 7})");
  EXPECT_MENTIONS(message(), "a number below 2");
  write_file(scratch / "encoder.json", R"({"a": 0, "b": 0})");
  EXPECT_MENTIONS(message(), "shares its number");
  write_file(scratch / "encoder.json", "[1");
  EXPECT_MENTIONS(message(), "not a JSON object");
}

TEST(Gpt2Tokenizer, RefusesMergesThatAreNotTheVocabularys) {
  const Texts good = vocabulary();
  const auto message = [&](const std::string& merges) {
    return error_of([&] { const Gpt2Tokenizer tokenizer(good.encoder, merges); });
  };
  EXPECT_EQ(message(good.merges), "");
  EXPECT_MENTIONS(message(""), "holds 0 merges; expected 9");
  EXPECT_MENTIONS(message("#version: 0.2\n"), "holds 0 merges; expected 9");
  const std::size_t line = good.merges.find('\n', good.merges.size() / 2);
  EXPECT_MENTIONS(message(good.merges.substr(0, line + 1)), "merges; expected 9");
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string text = good.merges;
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return text.replace(at, from.size(), to);
  };
  EXPECT_MENTIONS(message(changed("b c\naa aa\n", "aa aa\nb c\n")), "line 4: 'aa aa'");
  EXPECT_MENTIONS(message(changed("b c\n", "")), "out of order");
  EXPECT_MENTIONS(message(changed("b c\n", "b c\nb c\n")), "line 5: 'b c'");
  EXPECT_MENTIONS(message(good.merges + "a bc\n"), "line 11: 'a bc' produces the token");
  // Every cut, at whatever byte: refused, or nothing lost but the end of the last line.
  for (std::size_t size = 0; size + 1 < good.merges.size(); ++size) {
    EXPECT_NE(message(good.merges.substr(0, size)), "") << size;
  }
}

TEST(Gpt2Tokenizer, TellsWhichFilesAreNotThoseOfGpt2) {
  const Scratch scratch;
  write_vocabulary(scratch.path());
  const auto notes = Gpt2Tokenizer(scratch.path()).notes();
  ASSERT_EQ(notes.size(), 2U);
  EXPECT_MENTIONS(notes[0], "encoder.json is not GPT-2's own (sha256 ");
  EXPECT_MENTIONS(notes[0], sha256_of_file(scratch / "encoder.json"));
  EXPECT_MENTIONS(notes[1], "vocab.bpe is not GPT-2's own");
  EXPECT_MENTIONS(notes[1], "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5");
}

TEST(Gpt2Tokenizer, KnowsTheFilesOfGpt2) {
  const char* real = std::getenv("RODE_GPT2_VOCAB");
  if (real == nullptr) GTEST_SKIP() << "RODE_GPT2_VOCAB does not name the folder of GPT-2's files";
  EXPECT_TRUE(Gpt2Tokenizer(real).notes().empty());
}

// In parts of random sizes, as the document encoder gives them.
std::vector<Token> in_parts(Tokenizer& tokenizer, std::string_view text, Random& random,
                            std::uint64_t longest, std::size_t& most_kept) {
  std::vector<Token> tokens;
  std::string kept;
  while (!text.empty()) {
    const std::size_t size = std::min<std::size_t>(1 + random.below(longest), text.size());
    kept += text.substr(0, size);
    text.remove_prefix(size);
    kept.erase(0, tokenizer.encode_part(kept, false, tokens));
    most_kept = std::max(most_kept, kept.size());
  }
  tokenizer.encode_part(kept, true, tokens);
  return tokens;
}

TEST(Gpt2Tokenizer, GivesTheSameTokensForTextInParts) {
  const Texts texts = vocabulary();
  constexpr std::size_t kWindow = 150;
  Gpt2Tokenizer tokenizer(texts.encoder, texts.merges, kWindow);
  Random random(13);
  const std::vector<Strings> alphabets = {
      {"a"},
      {"a", "b", "c"},
      {"a", "a", "a", "b", "é"},
      {" ", "\n", "\u2003"},
      {"'"},
      {"'", "!", "\x80"},
      {"\xc3", "\xa9"},
      {"a", "b", " ", "\n", "'s", "'r", "é", "😀", "\u2003", "1", "\xff", "\xf0\x9f"}};
  for (int trial = 0; trial < 3000; ++trial) {
    const Strings& alphabet = alphabets[random.below(alphabets.size())];
    std::string text = random.below(2) == 0 ? " " : "";
    for (std::uint64_t i = random.below(900); i > 0; --i) {
      text += alphabet[random.below(alphabet.size())];
    }
    std::vector<Token> whole;
    tokenizer.encode(text, whole);
    std::size_t most_kept = 0;
    const std::uint64_t longest = random.below(2) == 0 ? 3 : 100;
    ASSERT_EQ(in_parts(tokenizer, text, random, longest, most_kept), whole) << text;
    EXPECT_LT(most_kept, kWindow + 100) << "the piece was kept whole: " << text;
  }
}

TEST(Tokenizers, AreFoundByName) {
  EXPECT_EQ(make_tokenizer("bytes", "")->vocab_size(), 257);
  EXPECT_MENTIONS(error_of([] { make_tokenizer("gpt3", ""); }), "did you mean 'gpt2'");
}

}  // namespace
}  // namespace rode::lab
