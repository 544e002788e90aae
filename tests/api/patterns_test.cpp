// SPDX-License-Identifier: Apache-2.0
// Globs on names, and the text of `splits`.
#include <chrono>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "api/support.h"
#include "optim/splits.h"

namespace rode {
namespace {

using test::expect_error;
using Sizes = std::vector<std::int64_t>;

TEST(Glob, MatchesTheWholeNameOnly) {
  EXPECT_TRUE(glob_match("", ""));
  EXPECT_FALSE(glob_match("", "a"));
  EXPECT_FALSE(glob_match("a", ""));
  EXPECT_TRUE(glob_match("abc", "abc"));
  EXPECT_FALSE(glob_match("abc", "abcd"));
  EXPECT_FALSE(glob_match("abc", "xabc"));
  EXPECT_FALSE(glob_match("ABC", "abc"));
}

TEST(Glob, AStarIsAnyRunAndAQuestionMarkOneCharacter) {
  EXPECT_TRUE(glob_match("*", ""));
  EXPECT_TRUE(glob_match("***", ""));
  EXPECT_TRUE(glob_match("*", "a.b.c"));
  EXPECT_TRUE(glob_match("a*c", "ac"));
  EXPECT_TRUE(glob_match("a*c", "abcbc"));
  EXPECT_FALSE(glob_match("a*c", "abcb"));
  EXPECT_TRUE(glob_match("*.weight", "h.0.weight"));
  EXPECT_FALSE(glob_match("*.weight", "weight"));
  EXPECT_FALSE(glob_match("?", ""));
  EXPECT_TRUE(glob_match("?", "."));
  EXPECT_TRUE(glob_match("h.?.w", "h.3.w"));
  EXPECT_FALSE(glob_match("h.?.w", "h.13.w"));
  EXPECT_TRUE(glob_match("h.?*.w", "h.13.w"));
  EXPECT_TRUE(glob_match("*a*b*", "xaybz"));
  EXPECT_FALSE(glob_match("*a*b*", "xbya"));
  EXPECT_TRUE(glob_match("*aab", "aaaab"));
}

TEST(Glob, OtherCharactersMeanThemselves) {
  EXPECT_TRUE(glob_match("a[0]", "a[0]"));
  EXPECT_FALSE(glob_match("a[0]", "a0"));
  EXPECT_TRUE(glob_match("a*", "a*"));
  EXPECT_TRUE(glob_match("a\\*", "a\\b"));
  const std::string zero("a\0b", 3);
  EXPECT_TRUE(glob_match("a?b", zero));
  EXPECT_FALSE(glob_match("a", zero));
}

TEST(Glob, HostilePatternsEndInBoundedTime) {
  const std::string text(20000, 'a');
  std::string stars;
  for (int i = 0; i < 1000; ++i) stars += "a*";
  const auto start = std::chrono::steady_clock::now();
  EXPECT_FALSE(glob_match(stars + "b", text));
  EXPECT_FALSE(glob_match("*" + std::string(1000, 'a') + "b", text));
  EXPECT_TRUE(glob_match(stars, text));
  // Backtracking over every star would take longer than the universe is old.
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

TEST(Splits, TextGivesEqualPartsOrSizesAndTheFirstMatchHolds) {
  const Splits splits("rode", "*.c_attn.weight=3,*.qkv=768+256+256,*=1");
  EXPECT_EQ(splits.blocks("h.0.c_attn.weight", 12), (Sizes{4, 4, 4}));
  EXPECT_EQ(splits.blocks("x.qkv", 1280), (Sizes{768, 256, 256}));
  EXPECT_EQ(splits.blocks("other", 7), Sizes{7});
  EXPECT_EQ(Splits("rode", "").blocks("other", 7), Sizes{7});
  EXPECT_EQ(Splits("rode", "a=b=2").blocks("a=b", 4), (Sizes{2, 2}));
}

TEST(Splits, AMalformedTextIsRefusedWithThePartThatIsWrong) {
  for (const char* text : {"qkv", "=3", "qkv=", "qkv=3,", ",qkv=3", "qkv=3,,b=2"}) {
    expect_error([&] { Splits("rode", text); }, ErrorKind::invalid_argument,
                 {"[rode]", "'splits'", "PATTERN=COUNT"});
  }
  for (const char* text : {"qkv=x", "qkv=1.5", "qkv=1+", "qkv=+1", "qkv=1++2", "qkv=0", "qkv=-1",
                           "qkv=4+0", "qkv=9223372036854775808"}) {
    expect_error([&] { Splits("rode", text); }, ErrorKind::invalid_argument,
                 {"[rode]", "'splits'"});
  }
  expect_error([] { Method::by_name("muon", {{"splits", "qkv"}}); }, ErrorKind::invalid_argument,
               {"[muon]", "'splits'", "'qkv'"});
}

TEST(Splits, BlocksThatDoNotFitAreRefusedWithNameAndSizes) {
  expect_error([] { Splits("rode", "w=3").blocks("w", 8); }, ErrorKind::invalid_argument,
               {"'w'", "fan-out 8", "3 equal"});
  expect_error([] { Splits("rode", "w=3").blocks("w", 0); }, ErrorKind::invalid_argument, {"'w'"});
  expect_error([] { Splits("rode", "w=3+4").blocks("w", 8); }, ErrorKind::invalid_argument,
               {"'w'", "fan-out 8", "3+4", "add up to 7"});
}

TEST(Splits, APatternWithoutAParameterIsRefusedAtConstruction) {
  for (const char* name : {"rode", "muon"}) {
    test::Model model;
    const Method method = Method::by_name(name, {{"splits", "h.0.*=2,qkv=3"}});
    expect_error([&] { Optimizer(model.parameters(), method); }, ErrorKind::invalid_argument,
                 {"'splits'", "'qkv'", "matches no parameter"});
  }
}

TEST(Splits, FanOutIsTheLastDimensionWhereTheLayoutSaysSo) {
  test::Model model({{"w", {6, 4}}});
  auto parameters = model.parameters();
  const Method method = Method::by_name("rode", {{"splits", "w=2+2"}});
  EXPECT_THROW(Optimizer(parameters, method), Error);
  parameters[0].layout = Layout::in_out;
  Optimizer optimizer(parameters, method);
  optimizer.step();
  const auto diagnostics = optimizer.matrix_diagnostics();
  ASSERT_EQ(diagnostics.size(), 2U);
  EXPECT_EQ(diagnostics[0].name, "w[0]");
  EXPECT_EQ(diagnostics[1].name, "w[1]");
}

}  // namespace
}  // namespace rode
