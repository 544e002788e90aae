// SPDX-License-Identifier: Apache-2.0
// Batches made ahead: in order, with their positions, failures where they belong.
#include "lab/stream/prefetch.h"

#include <atomic>
#include <memory>
#include <stdexcept>
#include <vector>

#include "lab/support.h"
#include "lab/synthetic/tiny_lm.h"

namespace rode::lab {
namespace {

TEST(Prefetcher, GivesBatchesInOrderAndNotTooManyAhead) {
  std::atomic<int> made{0};
  Prefetcher<int> prefetcher([&] { return made++; }, 3);
  for (int i = 0; i < 200; ++i) {
    EXPECT_EQ(prefetcher.next(), i);
    EXPECT_LE(made, i + 1 + 3 + 1);  // three waiting, one in the making
  }
}

TEST(Prefetcher, ThrowsAFailureAfterWhatCameBefore) {
  int count = 0;
  Prefetcher<int> prefetcher(
      [&] {
        if (count == 3) throw Error(ErrorKind::file, "test", "unreadable");
        return count++;
      },
      8);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(prefetcher.next(), i);
  EXPECT_EQ(error_of([&] { prefetcher.next(); }), "[test] unreadable");
  EXPECT_EQ(error_of([&] { prefetcher.next(); }), "[test] unreadable");
}

TEST(Prefetcher, CarriesThePositionOfTheBatchUsed) {
  struct Batch {
    std::vector<std::int64_t> tokens;
    StreamPosition after;
  };
  const auto source = std::make_shared<TinyLm>(TinyLmOptions{}, 100, 8, 0);
  TokenStream stream(source, {.seed = 2});
  Prefetcher<Batch> prefetcher(
      [&] {
        Batch batch{std::vector<std::int64_t>(4 * 9), {}};
        stream.next(4, batch.tokens);
        batch.after = stream.position();
        return batch;
      },
      4);
  StreamPosition saved;
  for (int i = 0; i < 5; ++i) saved = prefetcher.next().after;
  EXPECT_EQ(saved.taken, 20U);
  TokenStream resumed(source, {.seed = 2});
  resumed.seek(saved);
  std::vector<std::int64_t> expected(4 * 9);
  resumed.next(4, expected);
  EXPECT_EQ(prefetcher.next().tokens, expected);
}

TEST(Prefetcher, EndsWhileBatchesWait) {
  for (int i = 0; i < 50; ++i) Prefetcher<int>([] { return 1; }, 2);
}

}  // namespace
}  // namespace rode::lab
