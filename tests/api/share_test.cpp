// SPDX-License-Identifier: Apache-2.0
// What processes that share a step decide alike, without processes.
#include <algorithm>
#include <limits>

#include <gtest/gtest.h>

#include "rode/rode.h"

namespace rode {
namespace {

Parameter parameter(const std::string& name, Shape shape) {
  Parameter p;
  p.name = name;
  p.value.shape = shape;
  return p;
}

std::vector<ParameterGroup> groups(const Method& method = RodeOptions{}) {
  return {{{parameter("a", {64, 32}), parameter("x.experts", {5, 8, 4})}, method},
          {{parameter("wte", {400, 64}), parameter("norm", {9})}, method}};
}

TEST(SharePlan, CoversEveryElementOnceAndDividesWhatMayBe) {
  const auto given = groups();
  const SharePlan plan = plan_share(given, 3, {true, true, true, true});
  const std::int64_t sizes[] = {64 * 32, 5 * 8 * 4, 400 * 64, 9};
  std::vector<std::int64_t> ends(4, 0);
  for (std::size_t index = 0; index < 4; ++index) {
    for (const SharePiece& piece : plan.pieces) {
      if (piece.parameter != index) continue;
      EXPECT_EQ(piece.first, ends[index]);
      ends[index] += piece.count;
      EXPECT_EQ(piece.whole, piece.count == sizes[index]);
    }
    EXPECT_EQ(ends[index], sizes[index]);
  }
  const auto is_divided = [](const SharePlan& p, std::size_t index) {
    return std::ranges::any_of(
        p.pieces, [&](const SharePiece& s) { return s.parameter == index && !s.whole; });
  };
  EXPECT_FALSE(is_divided(plan, 0));
  EXPECT_TRUE(is_divided(plan, 1));
  EXPECT_TRUE(is_divided(plan, 2));
  for (const SharePiece& piece : plan.pieces) {
    if (piece.parameter == 1) {
      EXPECT_EQ(piece.shape({5, 8, 4}), Shape({piece.count / 32, 8, 4}));
    } else if (!piece.whole) {
      EXPECT_EQ(piece.shape({400, 64}), Shape({piece.count}));
    }
  }
  EXPECT_FALSE(is_divided(plan_share(given, 3, {true, true, false, true}), 2));
  EXPECT_NO_THROW(check_share(plan, given));
  const auto int8 = groups(RodeOptions{.storage = {.state_dtype = StateDType::int8}});
  EXPECT_THROW(check_share(plan, int8), Error);
  auto twice = given;
  twice[1].parameters[0].name = "a";
  EXPECT_THROW(plan_share(twice, 2, {true, true, true, true}), Error);
}

std::string told(std::vector<ShareFacts> facts) {
  for (ShareFacts& one : facts) one = ShareFacts::from_text(one.to_text());
  const auto found = difference(facts);
  return found ? found->what() : "";
}

TEST(ShareFacts, AreComparedAndTheFirstDifferenceIsNamed) {
  const std::vector<std::string> forms(4, "");
  const auto facts = [&](const Method& method, OnBadGradient policy = OnBadGradient::refuse) {
    const auto given = groups(method);
    return share_facts(given, plan_share(given, 2, {true, true, true, true}), policy, forms);
  };
  const ShareFacts base = facts(RodeOptions{});
  EXPECT_EQ(told({base, base}), "");
  const std::string differ = told({base, base, facts(RodeOptions{.lr = 0.5})});
  EXPECT_TRUE(
      differ.starts_with("[process group] options differ: rank 2 has group 0: lr = 0.5, "
                         "rank 0 has group 0: lr = 0.05"))
      << differ;
  EXPECT_NE(told({base, facts(MuonOptions{})}).find("rank 1 has muon, rank 0 has rode"),
            std::string::npos);
  EXPECT_NE(told({base, facts(RodeOptions{}, OnBadGradient::skip)}).find("rank 1 has skip"),
            std::string::npos);
  ShareFacts other = base;
  other.parameters[2] = "'wte' f32 (401, 64)";
  EXPECT_NE(told({base, other}).find("rank 1 has 'wte' f32 (401, 64)"), std::string::npos);
  other = ShareFacts{};
  other.error = "out of memory";
  EXPECT_EQ(told({base, other}),
            "[process group] rank 1 could not make its optimizer: out of memory");
}

class Agreement : public testing::Test {
 protected:
  Agreement() : reports(3, StepReport{false, {true, true, false}, {false, false, false}, 7, 11}) {}

  std::vector<std::size_t> agree(OnBadGradient policy = OnBadGradient::refuse) const {
    std::vector<double> sums;
    for (int r = 0; r < 3; ++r) {
      const auto numbers = reports[static_cast<std::size_t>(r)].numbers(r, 3);
      sums.resize(numbers.size(), 0);
      for (std::size_t i = 0; i < numbers.size(); ++i) sums[i] += numbers[i];
    }
    const std::vector<std::string> names = {"a", "b", "c"};
    return agree_on_step(sums, 3, names, policy);
  }
  void expect_refused(ErrorKind kind, const std::string& part) const {
    try {
      agree();
      ADD_FAILURE() << "no error; expected " << part;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), kind);
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
      EXPECT_FALSE(error.changed());
    }
  }

  std::vector<StepReport> reports;
};

TEST_F(Agreement, IsReachedWhereAllTellTheSame) { EXPECT_TRUE(agree().empty()); }

TEST_F(Agreement, LeavesOutWhatIsBadOnAnyRankWhereThatIsSkipped) {
  reports[2].bad[1] = true;
  EXPECT_EQ(agree(OnBadGradient::skip), std::vector<std::size_t>{1});
  expect_refused(ErrorKind::non_finite, "gradient of 'b' holds NaN or Inf");
  expect_refused(ErrorKind::non_finite, "on rank 2;");
}

TEST_F(Agreement, IsRefusedWhereRanksDiffer) {
  reports[1].present[2] = true;
  expect_refused(ErrorKind::missing_gradient, "'c' is present on 1 ranks and absent on 2");
  reports[2].steps_done = 10;
  expect_refused(ErrorKind::process_group, "rank 2 has made 10 steps, rank 0 11");
  reports[1].options = 8;
  expect_refused(ErrorKind::process_group, "options of rank 1 differ");
  reports[0].failed = reports[2].failed = true;
  expect_refused(ErrorKind::process_group, "rank 0, 2 could not step");
}

TEST(FiniteGradient, IsNeitherNanNorInfiniteNorAboveItsLimit) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  EXPECT_TRUE(finite_gradient(0, 1e72) && finite_gradient(1e72, 1e72));
  EXPECT_FALSE(finite_gradient(1.1e72, 1e72));
  EXPECT_FALSE(finite_gradient(kInfinity, 1e72));
  EXPECT_FALSE(finite_gradient(std::numeric_limits<double>::quiet_NaN(), 1e72));
  EXPECT_FALSE(finite_gradient(std::numeric_limits<double>::quiet_NaN(), kInfinity));
}

}  // namespace
}  // namespace rode
