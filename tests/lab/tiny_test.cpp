// SPDX-License-Identifier: Apache-2.0
// The synthetic tasks: their entropy is what they promise, their images can be distinguished.
#include <array>
#include <cmath>
#include <set>
#include <vector>

#include "lab/support.h"
#include "lab/synthetic/tiny_lm.h"
#include "lab/synthetic/tiny_vision.h"

namespace rode::lab {
namespace {

TEST(TinyLm, ReachesItsEntropyAndNotLess) {
  const TinyLm language({}, 4000, 64, 0);
  ASSERT_TRUE(language.best_loss());
  const double entropy = *language.best_loss();
  // Of eight probabilities that fall by 0.6, computed apart.
  EXPECT_NEAR(entropy, 1.5957785102580326, 1e-14);
  double sum = 0;
  double squares = 0;
  std::array<double, 65> by_position{};
  std::vector<std::int64_t> tokens(65);
  for (std::uint64_t i = 0; i < language.size(); ++i) {
    language.read(i, tokens);
    for (std::size_t t = 1; t < tokens.size(); ++t) {
      const double p = language.probability(std::span(tokens).first(t), tokens[t]);
      ASSERT_GT(p, 0);
      const double loss = -std::log(p);
      sum += loss;
      squares += loss * loss;
      by_position[t] += loss;
    }
  }
  const double count = 64.0 * static_cast<double>(language.size());
  const double mean = sum / count;
  const double deviation = std::sqrt(squares / count - mean * mean);
  EXPECT_NEAR(mean, entropy, 4 * deviation / std::sqrt(count));
  for (std::size_t t = 1; t < by_position.size(); ++t) {  // at the first position as at the last
    EXPECT_NEAR(by_position[t] / 4000, entropy, 5 * deviation / std::sqrt(4000.0)) << t;
  }
}

TEST(TinyLm, HasProbabilitiesThatSumToOne) {
  const TinyLm language({}, 10, 16, 0);
  std::vector<std::int64_t> tokens(17);
  language.read(3, tokens);
  for (std::size_t t = 1; t < tokens.size(); ++t) {
    double sum = 0;
    for (std::int64_t token = 0; token < 64; ++token) {
      sum += language.probability(std::span(tokens).first(t), token);
    }
    EXPECT_NEAR(sum, 1, 1e-12);
  }
}

TEST(TinyLm, NeedsTheTopicAndTheTokenBeforeTheLast) {
  // Otherwise a model without attention would do: the same last token, other successors.
  const TinyLm language({}, 10, 16, 0);
  const auto best = [&](std::vector<std::int64_t> before) {
    std::set<std::int64_t> possible;
    for (std::int64_t token = 0; token < 64; ++token) {
      if (language.probability(before, token) > 0) possible.insert(token);
    }
    return possible;
  };
  EXPECT_NE(best({0, 5, 9}), best({1, 5, 9}));
  EXPECT_NE(best({0, 5, 9}), best({0, 6, 9}));
  EXPECT_EQ(best({0, 5, 9}), best({0, 33, 17, 5, 9}));
}

TEST(TinyLm, IsTheSameEveryTimeAndOtherwiseInValidation) {
  const TinyLm a({}, 100, 32, 0);
  const TinyLm b({}, 100, 32, 0);
  const TinyLm valid({}, 100, 32, 1);
  std::vector<std::int64_t> x(33);
  std::vector<std::int64_t> y(33);
  std::vector<std::int64_t> z(33);
  a.read(7, x);
  b.read(7, y);
  valid.read(7, z);
  EXPECT_EQ(x, y);
  EXPECT_NE(x, z);
  for (std::size_t t = 1; t < z.size(); ++t) {  // the same language all the same
    EXPECT_GT(a.probability(std::span(z).first(t), z[t]), 0);
  }
}

TEST(TinyLm, RefusesALanguageThatCannotBe) {
  TinyLmOptions options;
  options.branches = 65;
  EXPECT_MENTIONS(error_of([&] { const TinyLm language(options, 1, 1, 0); }), "branches 65");
}

TEST(TinyVision, DrawsTwelveClassesInTwoColoursAtLeast) {
  const TinyVision images(120, 32, 0);
  Image image;
  for (std::uint64_t i = 0; i < images.size(); ++i) {
    EXPECT_EQ(images.read(i, image), static_cast<std::int64_t>(i % 12));
    double mean = 0;
    double squares = 0;
    for (const std::uint8_t value : image.pixels) {
      mean += value;
      squares += value * value;
    }
    const auto n = static_cast<double>(image.pixels.size());
    EXPECT_GT(squares / n - mean * mean / n / n, 100);  // the noise alone has at most 104
  }
}

TEST(TinyVision, IsTheSameEveryTimeAndOtherwiseInValidation) {
  Image a;
  Image b;
  Image c;
  TinyVision(50, 32, 0).read(20, a);
  TinyVision(99, 32, 0).read(20, b);
  TinyVision(50, 32, 1).read(20, c);
  EXPECT_EQ(a.pixels, b.pixels);
  EXPECT_NE(a.pixels, c.pixels);
}

}  // namespace
}  // namespace rode::lab
