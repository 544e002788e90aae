// SPDX-License-Identifier: Apache-2.0
// A fixed set of threads that share out numbered tasks.
//
// fork() copies the pool, but not its threads: in a child the caller does all tasks alone.
//
// Which thread runs a task never changes what it computes: callers cut their work into
// tasks by shape alone, so results do not depend on the number of threads.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

namespace rode::cpu {

class ThreadPool {
 public:
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return threads_; }

  // Runs f(task, worker) for task = 0 .. count-1; worker < threads() names the thread's
  // scratch space. The caller takes part. The first exception is rethrown here.
  template <class F>
  void run(std::int64_t count, F&& f) {
    using Function = std::remove_reference_t<F>;
    run_erased(count, &f, [](void* context, std::int64_t task, int worker) {
      (*static_cast<Function*>(context))(task, worker);
    });
  }

 private:
  using Call = void (*)(void*, std::int64_t, int);
  void run_erased(std::int64_t count, void* context, Call call);
  // Whether this process is a child of the one that made the pool.
  bool forked() const;
  void stop();

  struct Crew;  // the threads, and what they wait for
  std::unique_ptr<Crew> crew_;
  int threads_;
  long process_;
};

// The threads that work on one matrix: a whole pool, or the one thread that already
// holds the task. Code written against a team gives the same bits either way.
class Team {
 public:
  explicit Team(ThreadPool* pool) : pool_(pool) {}
  explicit Team(int worker) : worker_(worker) {}

  template <class F>
  void run(std::int64_t count, F&& f) {
    if (pool_ != nullptr && count > 1) {
      pool_->run(count, [&](std::int64_t task, int) { f(task); });
    } else {
      for (std::int64_t task = 0; task < count; ++task) f(task);
    }
  }
  int worker() const { return worker_; }

 private:
  ThreadPool* pool_ = nullptr;
  int worker_ = 0;
};

}  // namespace rode::cpu
