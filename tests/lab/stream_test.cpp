// SPDX-License-Identifier: Apache-2.0
// Orders of samples and streams of sequences: permutations, resuming, ranks.
#include <algorithm>
#include <memory>
#include <numeric>
#include <set>
#include <vector>

#include <nlohmann/json.hpp>

#include "lab/stream/sequence_source.h"
#include "lab/support.h"

namespace rode::lab {
namespace {

TEST(Permutation, IsOneForEverySize) {
  for (std::uint64_t size = 1; size < 200; ++size) {
    const Permutation permutation(size, size * 7);
    std::vector<bool> seen(size);
    for (std::uint64_t i = 0; i < size; ++i) {
      ASSERT_LT(permutation(i), size);
      ASSERT_FALSE(seen[permutation(i)]) << size;
      seen[permutation(i)] = true;
    }
  }
}

TEST(Permutation, SpreadsNeighboursAndDependsOnTheSeed) {
  constexpr std::uint64_t kSize = 100'003;
  const Permutation a(kSize, 1);
  const Permutation b(kSize, 2);
  int ascending = 0;
  int equal = 0;
  for (std::uint64_t i = 0; i + 1 < kSize; ++i) {
    ascending += a(i) < a(i + 1) ? 1 : 0;
    equal += a(i) == b(i) ? 1 : 0;
  }
  EXPECT_NEAR(ascending, kSize / 2.0, 1000);  // more than ten deviations (91) of a random order
  EXPECT_LT(equal, 20);                       // one expected
}

TEST(Permutation, WorksOnHugeSizesWithoutMemory) {
  const Permutation permutation(std::uint64_t{1} << 40U, 3);
  std::set<std::uint64_t> seen;
  for (std::uint64_t i = 0; i < 1000; ++i) seen.insert(permutation(i));
  EXPECT_EQ(seen.size(), 1000U);
  EXPECT_GT(*seen.rbegin(), std::uint64_t{1} << 38U);
}

TEST(SampleOrder, VisitsEverySampleOnceAnEpochInAnotherOrderEach) {
  SampleOrder order(50, {.seed = 4});
  std::vector<std::vector<std::uint64_t>> epochs(3);
  for (auto& epoch : epochs) {
    for (int i = 0; i < 50; ++i) epoch.push_back(order.next().index);
  }
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_NE(epochs[1], epochs[2]);
  for (auto& epoch : epochs) {
    std::sort(epoch.begin(), epoch.end());
    for (std::uint64_t i = 0; i < 50; ++i) EXPECT_EQ(epoch[i], i);
  }
}

TEST(SampleOrder, RanksShareTheOrderOfOne) {
  SampleOrder alone(17, {.seed = 9});
  std::vector<SampleOrder> ranks;
  for (std::uint64_t r = 0; r < 3; ++r) ranks.emplace_back(17, OrderOptions{9, r, 3});
  for (int i = 0; i < 60; ++i) {
    const Sample expected = alone.next();
    const Sample sample = ranks[static_cast<std::size_t>(i % 3)].next();
    EXPECT_EQ(sample.index, expected.index);
    EXPECT_EQ(sample.seed, expected.seed);
  }
  EXPECT_EQ(ranks[0].position(), alone.position());
}

TEST(SampleOrder, ResumesExactlyFromJson) {
  for (const int taken : {0, 1, 16, 17, 40, 100}) {
    SampleOrder order(17, {.seed = 5});
    for (int i = 0; i < taken; ++i) order.next();
    const std::string saved = to_json(order.position()).dump();
    SampleOrder resumed(17, {.seed = 5});
    resumed.seek(stream_position(nlohmann::json::parse(saved)));
    for (int i = 0; i < 40; ++i) {
      const Sample a = order.next();
      const Sample b = resumed.next();
      EXPECT_EQ(a.index, b.index);
      EXPECT_EQ(a.epoch, b.epoch);
      EXPECT_EQ(a.seed, b.seed);
    }
  }
}

TEST(SampleOrder, SeeksBackwardsToo) {
  SampleOrder order(5, {.seed = 5});
  std::vector<std::uint64_t> first;
  for (int i = 0; i < 12; ++i) first.push_back(order.next().index);
  order.seek({2, 5, 5});
  for (std::size_t i = 2; i < 12; ++i) EXPECT_EQ(order.next().index, first[i]);
}

TEST(SampleOrder, RefusesAPositionOfOtherData) {
  SampleOrder order(17, {.seed = 5});
  EXPECT_MENTIONS(error_of([&] { order.seek({3, 6, 17}); }), "seed 6");
  EXPECT_MENTIONS(error_of([&] { order.seek({3, 5, 18}); }), "18 samples");
  EXPECT_MENTIONS(error_of([] { (void)stream_position(nlohmann::json::parse("{\"taken\": 1}")); }),
                  "'seed'");
  EXPECT_MENTIONS(error_of([] { (void)stream_position(nlohmann::json::parse("[]")); }), "'taken'");
  EXPECT_MENTIONS(error_of([] { const SampleOrder empty(0, {}); }), "no sample");
  EXPECT_MENTIONS(error_of([] { const SampleOrder wrong(4, {1, 2, 2}); }), "rank 2 of 2");
}

// 103 tokens 0..102 in shards of 10: window i of length T begins with token i T.
std::shared_ptr<const ShardSequences> counted(const Scratch& scratch, std::int64_t length,
                                              std::int64_t vocab_size = 257) {
  if (!std::filesystem::exists(scratch / "tokens.json")) {
    TokenInfo info;
    info.tokenizer = "bytes";
    info.vocab_size = 103;
    std::vector<Token> tokens(103);
    std::iota(tokens.begin(), tokens.end(), Token{0});
    TokenFolderWriter writer(scratch.path(), info, {"train", 10, false});
    writer.append(tokens);
    writer.finish();
  }
  return std::make_shared<ShardSequences>(TokenFolder(scratch.path(), "train"), length, vocab_size);
}

TEST(ShardSequences, CrossShardsAndShareOneToken) {
  const Scratch scratch;
  for (const std::int64_t length : {1, 3, 10, 25, 102}) {
    const auto source = counted(scratch, length);
    ASSERT_EQ(source->size(), static_cast<std::uint64_t>(102 / length));
    std::vector<std::int64_t> window(static_cast<std::size_t>(length) + 1);
    for (std::uint64_t i = 0; i < source->size(); ++i) {
      source->read(i, window);
      for (std::size_t k = 0; k < window.size(); ++k) {
        EXPECT_EQ(window[k], static_cast<std::int64_t>(i) * length + static_cast<std::int64_t>(k));
      }
    }
  }
  EXPECT_MENTIONS(error_of([&] { counted(scratch, 103); }), "expected at least 104");
}

TEST(ShardSequences, RefuseATokenBeyondTheModel) {
  const Scratch scratch;
  EXPECT_MENTIONS(error_of([&] { counted(scratch, 10, 102); }), "103 entries");
  std::filesystem::remove(scratch / "tokens.json");  // shards of unknown origin
  const auto source =
      std::make_shared<ShardSequences>(TokenFolder(scratch.path(), "train"), 10, 50);
  std::vector<std::int64_t> window(11);
  source->read(3, window);
  EXPECT_MENTIONS(error_of([&] { source->read(4, window); }), "token 50 in sequence 4");
}

TEST(TokenStream, ResumesBitForBit) {
  const Scratch scratch;
  TokenStream stream(counted(scratch, 4), {.seed = 3});
  std::vector<std::int64_t> batch(6 * 5);
  for (int i = 0; i < 7; ++i) stream.next(6, batch);
  TokenStream resumed(counted(scratch, 4), {.seed = 3});
  resumed.seek(stream.position());
  std::vector<std::int64_t> again(batch.size());
  for (int i = 0; i < 20; ++i) {
    stream.next(6, batch);
    resumed.next(6, again);
    EXPECT_EQ(batch, again);
  }
  EXPECT_MENTIONS(error_of([&] { stream.next(7, batch); }), "expected 7 x 5");
}

TEST(EvaluationSequences, GoInOrderAndEnd) {
  const Scratch scratch;
  EvaluationSequences all(counted(scratch, 10), 7);
  std::vector<std::int64_t> batch(3 * 11);
  std::vector<std::int64_t> first;
  std::vector<std::int64_t> rows;
  for (std::int64_t n = all.next(3, batch); n > 0; n = all.next(3, batch)) {
    rows.push_back(n);
    for (std::int64_t r = 0; r < n; ++r) first.push_back(batch[static_cast<std::size_t>(r) * 11]);
  }
  EXPECT_EQ(rows, (std::vector<std::int64_t>{3, 3, 1}));
  EXPECT_EQ(first, (std::vector<std::int64_t>{0, 10, 20, 30, 40, 50, 60}));
  all.rewind();
  EXPECT_EQ(all.next(3, batch), 3);
  EXPECT_EQ(batch[0], 0);

  EvaluationSequences second(counted(scratch, 10), 0, 1, 2);
  EXPECT_EQ(second.size(), 10U);
  EXPECT_EQ(second.next(3, batch), 3);
  EXPECT_EQ(batch[0], 10);
  EXPECT_EQ(batch[11], 30);
}

}  // namespace
}  // namespace rode::lab
