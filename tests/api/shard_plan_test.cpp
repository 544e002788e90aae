// SPDX-License-Identifier: Apache-2.0
// The plan of several processes, without any: balance, completeness, agreement.
#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "rode/rode.h"

namespace rode {
namespace {

constexpr std::int64_t kBf16 = 2;

ShardItem matrix(const std::string& name, std::int64_t m, std::int64_t n,
                 std::int64_t experts = 1) {
  const std::int64_t bytes = m * n * kBf16;
  return {name, experts * bytes, experts > 1 ? bytes : 0,
          static_cast<double>(experts) * newton_schulz_cost(m, n, 5), experts * m * n * 4};
}

ShardItem rest(const std::string& name, std::int64_t count, bool divided = true) {
  constexpr std::int64_t kUnit = 4096;
  return {name, count * kBf16, divided && count > kUnit ? kUnit * kBf16 : 0, 0, count * 8};
}

// Its published configuration, with the experts of a layer as two batches of matrices.
std::vector<ShardItem> qwen3_30b_a3b() {
  constexpr std::int64_t kWidth = 2048, kHeads = 4096, kKeys = 512, kExpert = 768, kExperts = 128;
  constexpr std::int64_t kVocabulary = 151936;
  std::vector<ShardItem> items{rest("embed", kVocabulary * kWidth),
                               rest("head", kVocabulary * kWidth), rest("norm", kWidth)};
  for (int layer = 0; layer < 48; ++layer) {
    const std::string in = "layers." + std::to_string(layer) + ".";
    items.push_back(matrix(in + "q", kHeads, kWidth));
    items.push_back(matrix(in + "k", kKeys, kWidth));
    items.push_back(matrix(in + "v", kKeys, kWidth));
    items.push_back(matrix(in + "o", kWidth, kHeads));
    items.push_back(matrix(in + "gate", kExperts, kWidth));
    items.push_back(matrix(in + "gate_up", 2 * kExpert, kWidth, kExperts));
    items.push_back(matrix(in + "down", kWidth, kExpert, kExperts));
    for (const char* norm : {"norm1", "norm2"}) items.push_back(rest(in + norm, kWidth));
    for (const char* norm : {"q_norm", "k_norm"}) items.push_back(rest(in + norm, 128));
  }
  return items;
}

// The decoder of task qwen2-114m.
std::vector<Parameter> qwen2_114m() {
  std::vector<Parameter> out;
  const auto add = [&](const std::string& name, const Shape& shape) {
    out.push_back({name, {nullptr, shape, DType::f32}, {}});
  };
  constexpr std::int64_t kWidth = 768, kKeys = 256, kMlp = 2048;
  add("embed_tokens.weight", {50257, kWidth});
  for (int layer = 0; layer < 12; ++layer) {
    const std::string in = "layers." + std::to_string(layer) + ".";
    add(in + "q_proj.weight", {kWidth, kWidth});
    add(in + "k_proj.weight", {kKeys, kWidth});
    add(in + "v_proj.weight", {kKeys, kWidth});
    add(in + "o_proj.weight", {kWidth, kWidth});
    for (const char* bias : {"q_proj.bias", "k_proj.bias", "v_proj.bias"}) {
      add(in + bias, {bias[0] == 'q' ? kWidth : kKeys});
    }
    add(in + "gate_proj.weight", {kMlp, kWidth});
    add(in + "up_proj.weight", {kMlp, kWidth});
    add(in + "down_proj.weight", {kWidth, kMlp});
    add(in + "norm1.weight", {kWidth});
    add(in + "norm2.weight", {kWidth});
  }
  add("norm.weight", {kWidth});
  return out;
}

// Every byte of every item has exactly one owner, and no two pieces of a message overlap.
void expect_complete(const std::vector<ShardItem>& items, const ShardPlan& plan) {
  std::map<std::size_t, std::vector<std::pair<std::int64_t, std::int64_t>>> parts;
  std::map<int, std::int64_t> end;
  for (const ShardPiece& p : plan.pieces) {
    ASSERT_LT(p.item, items.size());
    ASSERT_LT(p.rank, plan.ranks());
    parts[p.item].emplace_back(p.first, p.bytes);
    EXPECT_GE(p.offset, std::max<std::int64_t>(16, end[p.rank]));
    EXPECT_EQ(p.offset % 16, 0);
    end[p.rank] = p.offset + p.bytes;
    EXPECT_LE(end[p.rank], plan.message_bytes);
  }
  for (std::size_t i = 0; i < items.size(); ++i) {
    SCOPED_TRACE(items[i].name);
    auto& own = parts[i];
    std::ranges::sort(own);
    ASSERT_FALSE(own.empty());
    if (items[i].unit_bytes == 0) {
      EXPECT_EQ(own.size(), 1u);
    }
    std::int64_t at = 0;
    for (const auto& [first, bytes] : own) {
      EXPECT_EQ(first, at);
      if (items[i].unit_bytes > 0) {
        EXPECT_EQ(first % items[i].unit_bytes, 0);
      }
      at += bytes;
    }
    EXPECT_EQ(at, items[i].bytes);
  }
  EXPECT_EQ(plan.cuts.back(), plan.message_bytes);
  EXPECT_TRUE(std::ranges::is_sorted(plan.cuts));
}

std::int64_t total_bytes(const std::vector<ShardItem>& items) {
  std::int64_t sum = 0;
  for (const ShardItem& item : items) sum += item.bytes;
  return sum;
}

TEST(ShardPlan, BalancesQwen3ExpertsOverEightRanks) {
  const std::vector<ShardItem> items = qwen3_30b_a3b();
  EXPECT_NEAR(static_cast<double>(total_bytes(items)) / kBf16, 30.5e9, 0.1e9);
  const ShardPlan plan = plan_shards(items, 8);
  expect_complete(items, plan);
  EXPECT_LE(plan.cost_ratio(), 1.05);
  EXPECT_EQ(plan.cuts.size(), 3u);
  const double even = static_cast<double>(total_bytes(items)) / 8;
  EXPECT_LE(static_cast<double>(plan.message_bytes), 1.01 * even);
  EXPECT_EQ(plan.received_bytes(), 7 * plan.message_bytes);
  // Without dividing a batch by expert, the owner of the largest one alone would have more.
  std::vector<ShardItem> whole = items;
  for (ShardItem& item : whole) item.unit_bytes = item.cost > 0 ? 0 : item.unit_bytes;
  EXPECT_GT(plan_shards(whole, 128).cost_ratio(), 1.2);
  EXPECT_LE(plan_shards(items, 128).cost_ratio(), 1.05);
}

TEST(ShardPlan, HoldsAQuarterOfTheStateOfTheSmallDecoderOnEachOfFourRanks) {
  const std::vector<Parameter> parameters = qwen2_114m();
  for (const std::string_view name : {"rode", "rode-snr", "muon", "mars-m", "soap", "adamw"}) {
    SCOPED_TRACE(name);
    const Method method = Method::by_name(name);
    const std::vector<ShardItem> items = shard_items(parameters, method);
    ASSERT_EQ(items.size(), parameters.size());
    const ShardPlan plan = plan_shards(items, 4);
    expect_complete(items, plan);
    const double total = static_cast<double>(planned_state_bytes(parameters, method));
    double sum = 0;
    for (const ShardLoad& load : plan.loads) {
      sum += static_cast<double>(load.state_bytes);
      EXPECT_LE(static_cast<double>(load.state_bytes), 1.10 * total / 4);
    }
    EXPECT_NEAR(sum, total, 16);
    EXPECT_LE(plan.cost_ratio(), 1.05);
    const double even = static_cast<double>(total_bytes(items)) / 4;
    EXPECT_LE(static_cast<double>(plan.message_bytes), 1.01 * even);
  }
}

TEST(ShardPlan, LetsRanksWithoutMatricesStepMoreOfTheRest) {
  const std::vector<ShardItem> items{matrix("w", 64, 512), rest("b", 64 << 10), rest("c", 7)};
  const ShardPlan plan = plan_shards(items, 3);
  expect_complete(items, plan);
  EXPECT_EQ(plan.loads[0].cost, items[0].cost);
  EXPECT_EQ(plan.loads[1].cost, 0);
  const auto [least, most] = std::ranges::minmax(plan.loads, {}, &ShardLoad::bytes);
  EXPECT_LE(most.bytes - least.bytes, 2 * items[1].unit_bytes);
}

TEST(ShardPlan, LeavesRanksEmptyWhereThereIsLessThanOnePieceForEach) {
  const std::vector<ShardItem> items{matrix("w", 8, 4), rest("b", 5), rest("none", 0)};
  const ShardPlan plan = plan_shards(items, 7);
  expect_complete(items, plan);
  EXPECT_EQ(std::ranges::count(plan.loads, 0, &ShardLoad::bytes), 5);
  const ShardPlan nothing = plan_shards({}, 2);
  EXPECT_TRUE(nothing.pieces.empty());
  EXPECT_EQ(nothing.message_bytes, 16);  // the header
  EXPECT_EQ(nothing.cost_ratio(), 1);
}

TEST(ShardPlan, DependsOnItsArgumentsAloneAndItsHashOnAllOfThem) {
  const std::vector<ShardItem> items = qwen3_30b_a3b();
  const ShardPlan plan = plan_shards(items, 8);
  EXPECT_EQ(plan.hash, plan_shards(items, 8).hash);
  EXPECT_NE(plan.hash, plan_shards(items, 4).hash);
  for (int change = 0; change < 5; ++change) {
    std::vector<ShardItem> other = items;
    ShardItem& item = other[3];
    if (change == 0) item.name += "x";
    if (change == 1) item.bytes += 2;
    if (change == 2) item.cost += 1;
    if (change == 3) item.unit_bytes += 1;
    if (change == 4) item.state_bytes += 1;
    EXPECT_NE(plan.hash, plan_shards(other, 8).hash) << change;
  }
}

TEST(ShardPlan, CutsLongMessagesIntoAtMostThree) {
  const std::vector<ShardItem> items{rest("a", 1000, false), rest("b", 900, false)};
  EXPECT_EQ(plan_shards(items, 2).cuts, (std::vector<std::int64_t>{2016}));
  const ShardPlanOptions small{.short_message = 1000};
  EXPECT_EQ(plan_shards(items, 2, small).cuts, (std::vector<std::int64_t>{672, 1344, 2016}));
  const ShardPlanOptions two{.most_messages = 2, .short_message = 1};
  EXPECT_EQ(plan_shards(items, 2, two).cuts, (std::vector<std::int64_t>{1008, 2016}));
}

TEST(ShardPlan, RefusesWhatIsNoSize) {
  EXPECT_THROW(plan_shards({}, 0), Error);
  const std::vector<ShardItem> negative{{"w", -1, 0, 0, 0}};
  EXPECT_THROW(plan_shards(negative, 1), Error);
}

TEST(ShardItems, AreDivisibleWhereNoElementSeesAnother) {
  const std::vector<Parameter> parameters{{"w", {nullptr, {256, 128}, DType::f32}, {}},
                                          {"b", {nullptr, {40000}, DType::bf16}, {}},
                                          {"small", {nullptr, {100}, DType::f32}, {}}};
  const auto units = [&](std::string_view name, const Settings& settings) {
    std::vector<std::int64_t> out;
    for (const ShardItem& item : shard_items(parameters, Method::by_name(name, settings))) {
      out.push_back(item.unit_bytes);
    }
    return out;
  };
  using Units = std::vector<std::int64_t>;
  const Settings nearest{{"rounding", "nearest"}};
  EXPECT_EQ(units("rode", nearest), (Units{0, 8192, 0}));
  EXPECT_EQ(units("adamw", nearest), (Units{16384, 8192, 0}));
  EXPECT_EQ(units("adamw", {{"state_dtype", "int8"}}), (Units{0, 0, 0}));
  // Random numbers go by an element's place in the whole (Parameter::first_element).
  EXPECT_EQ(units("adamw", {{"rounding", "stochastic"}}), (Units{16384, 8192, 0}));
  EXPECT_EQ(units("adafactor", {}), (Units{0, 0, 0}));
}

TEST(ShardItems, CostWhatTheirMatricesDoBlockByBlock) {
  const std::vector<Parameter> parameters{{"w", {nullptr, {6, 4}, DType::f32}, {}},
                                          {"b", {nullptr, {5}, DType::f32}, {}}};
  const auto cost = [&](std::string_view name, const Settings& settings) {
    const auto items = shard_items(parameters, Method::by_name(name, settings));
    EXPECT_EQ(items.back().cost, 0);
    return items.front().cost;
  };
  EXPECT_EQ(cost("muon", {}), newton_schulz_cost(4, 6, 5));
  EXPECT_EQ(cost("muon", {{"splits", "w=3"}}), 3 * newton_schulz_cost(4, 2, 5));
  EXPECT_EQ(cost("rode", {{"conditioner", "none"}}), 0);
  EXPECT_THROW(cost("muon", {{"splits", "q=3"}}), Error);
  EXPECT_GT(cost("soap", {}), 0);
  EXPECT_EQ(cost("soap", {{"max_precond_dim", "3"}}), 0);
}

TEST(ShardItems, OfAShareMayMatchNoPattern) {
  std::vector<float> memory(24, 1);
  const std::vector<Parameter> parameters{{"w", {memory.data(), {6, 4}, DType::f32}, {}}};
  const Method method = Method::by_name("muon", {{"splits", "other=3"}});
  EXPECT_THROW(Optimizer(parameters, method), Error);
  EngineOptions engine;
  engine.share = true;
  EXPECT_EQ(Optimizer(parameters, method, {}, engine).steps_done(), 0);
}

}  // namespace
}  // namespace rode
