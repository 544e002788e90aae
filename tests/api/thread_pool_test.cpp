// SPDX-License-Identifier: Apache-2.0
// The thread pool on its own, and optimizers that share the machine.
#include "backend/cpu/thread_pool.h"

#include <atomic>
#include <optional>
#include <stdexcept>
#include <thread>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "api/support.h"

namespace rode {
namespace {

using cpu::Team;
using cpu::ThreadPool;
using test::expect_same;
using test::Model;
using test::Optimizer;
using test::Snapshot;
using test::Spec;

class Pool : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Threads, Pool, testing::Range(1, 9));

TEST_P(Pool, RunsEveryTaskOnceAndWaitsForAll) {
  ThreadPool pool(GetParam());
  EXPECT_EQ(pool.threads(), GetParam());
  for (const std::int64_t count : {0, 1, 2, 7, 100, 1000}) {
    std::vector<int> runs(static_cast<std::size_t>(count), 0);  // plain: each has one writer
    pool.run(count, [&](std::int64_t task, int worker) {
      ASSERT_GE(worker, 0);
      ASSERT_LT(worker, GetParam());
      ++runs[static_cast<std::size_t>(task)];
    });
    for (const int times : runs) EXPECT_EQ(times, 1);
  }
}

// A forked child has the pool but none of its threads: it must not wait for them, and the
// destructor must not end it. The alarm ends a child that hangs.
TEST_P(Pool, WorksAndEndsInAForkedChild) {
  std::optional<ThreadPool> pool(std::in_place, GetParam());
  std::atomic<int> before = 0;
  pool->run(10, [&](std::int64_t, int) { ++before; });
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::alarm(10);
    int sum = 0;
    pool->run(10, [&](std::int64_t task, int) { sum += static_cast<int>(task); });
    pool.reset();
    ::_exit(sum == 45 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "ended by signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_P(Pool, GivesEachWorkersScratchToOneThreadAtATime) {
  ThreadPool pool(GetParam());
  std::vector<std::int64_t> sums(static_cast<std::size_t>(GetParam()), 0);  // plain again
  pool.run(500,
           [&](std::int64_t task, int worker) { sums[static_cast<std::size_t>(worker)] += task; });
  std::int64_t total = 0;
  for (const std::int64_t sum : sums) total += sum;
  EXPECT_EQ(total, 500 * 499 / 2);
}

TEST_P(Pool, ShowsEachRunWhatTheOneBeforeWrote) {
  ThreadPool pool(GetParam());
  std::vector<int> values(16, 0);
  for (int round = 0; round < 300; ++round) {
    pool.run(16, [&](std::int64_t task, int) {
      // Another task's element, written by another thread in the previous round.
      const auto i = static_cast<std::size_t>(task);
      ++values[round % 2 == 0 ? i : 15 - i];
    });
  }
  for (const int value : values) EXPECT_EQ(value, 300);
}

TEST_P(Pool, PassesAnExceptionOnAndStaysUsable) {
  ThreadPool pool(GetParam());
  for (int round = 0; round < 20; ++round) {
    EXPECT_THROW(pool.run(50,
                          [&](std::int64_t task, int) {
                            if (task % 10 == round % 10) throw std::runtime_error("task");
                          }),
                 std::runtime_error);
    std::atomic<int> ran = 0;
    pool.run(50, [&](std::int64_t, int) { ++ran; });
    EXPECT_EQ(ran, 50);
  }
}

TEST_P(Pool, ATeamOfOneRunsInOrderAndATeamOfAllRunsEverything) {
  ThreadPool pool(GetParam());
  Team all(&pool), alone(0);
  std::vector<std::int64_t> order;
  alone.run(5, [&](std::int64_t task) { order.push_back(task); });
  EXPECT_EQ(order, (std::vector<std::int64_t>{0, 1, 2, 3, 4}));
  std::atomic<std::int64_t> sum = 0;
  all.run(100, [&](std::int64_t task) { sum += task; });
  EXPECT_EQ(sum, 4950);
}

TEST(PoolLife, StartsAndEndsManyTimesWithAndWithoutWork) {
  for (int round = 0; round < 50; ++round) {
    ThreadPool pool(1 + round % 4);
    if (round % 3 == 0) continue;
    std::atomic<int> ran = 0;
    pool.run(8, [&](std::int64_t, int) { ++ran; });
    EXPECT_EQ(ran, 8);
  }
}

// ---- Optimizers -----------------------------------------------------------------------

// Enough matrices for one per thread, and one of several tiles.
std::vector<Spec> many_matrices() {
  std::vector<Spec> specs{{"long", {70000}}, {"wide.weight", {40, 1700}}};
  for (int i = 0; i < 10; ++i) specs.push_back({"h." + std::to_string(i), {16 + i, 24}});
  return specs;
}

Snapshot after_steps(const Method& method, int threads, bool batched = true) {
  Model model(many_matrices());
  Optimizer optimizer(model.parameters(), method, {}, {.threads = threads, .batched = batched});
  model.run(optimizer, 3);
  return Snapshot(model, optimizer);
}

Method quick(std::string_view name) {
  if (name == "soap") return Method::by_name(name, {{"max_precond_dim", "64"}});
  return Method::by_name(name);
}

TEST(Threads, TheirNumberDoesNotChangeABit) {
  RODE_CPU_ONLY("tests the engine's threads");
  for (const OptimizerInfo& info : list_optimizers()) {
    SCOPED_TRACE(info.name);
    const Snapshot one = after_steps(quick(info.name), 1);
    for (const int threads : {2, 3, 5}) expect_same(after_steps(quick(info.name), threads), one);
  }
}

TEST(Threads, ThePlainLoopDoesNotDependOnThemEither) {
  RODE_CPU_ONLY("tests the engine's threads");
  for (const char* name : {"rode", "muon"}) {
    expect_same(after_steps(quick(name), 3, false), after_steps(quick(name), 1, false));
  }
}

TEST(Threads, TwoOptimizersAtOnceGiveWhatEachGivesAlone) {
  for (const char* name : {"rode", "muon-normproj", "soap", "adafactor"}) {
    SCOPED_TRACE(name);
    const Snapshot alone = after_steps(quick(name), 2);
    std::optional<Snapshot> first, second;
    std::thread other([&] { first.emplace(after_steps(quick(name), 2)); });
    second.emplace(after_steps(quick(name), 2));
    other.join();
    expect_same(*first, alone);
    expect_same(*second, alone);
  }
}

}  // namespace
}  // namespace rode
