// SPDX-License-Identifier: Apache-2.0
// The pool: one generation per run, tasks distributed by an atomic counter.
//
// A thread that waits looks for some microseconds before it sleeps. A step is many short runs, and
// a sleeping thread is late: the system may wake it on the core of the thread that woke it, and
// move it elsewhere a millisecond later.
#include "backend/cpu/thread_pool.h"

#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include "backend/cpu/blas.h"
#include "core/cores.h"
#include "rode/error.h"

namespace rode::cpu {
namespace {

// From a few to some 40 microseconds, by processor.
constexpr int kLooks = 1000;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

struct ThreadPool::Crew {
  std::vector<std::thread> workers;
  std::mutex mutex;
  std::condition_variable start, done;
  // Changed under the mutex, so that nobody misses a change and sleeps; looked at without it.
  std::atomic<std::uint64_t> generation{0};
  std::atomic<int> running{0};
  std::atomic<bool> stopped{false};
  std::exception_ptr failure;
  int looks = 0;  // before a thread sleeps; none where threads would wait for each other's core

  std::atomic<std::int64_t> next{0};
  std::int64_t count = 0;
  void* context = nullptr;
  Call call = nullptr;

  template <class F>
  void wait(std::condition_variable& changed, F&& over) {
    for (int look = 0; look < looks; ++look) {
      if (over()) return;
      relax();
    }
    std::unique_lock lock(mutex);
    changed.wait(lock, over);
  }

  void work(int worker) {
    const SingleThreadedBlas single;
    std::uint64_t seen = 0;
    while (true) {
      wait(start, [&] { return stopped || generation != seen; });
      if (stopped) return;
      seen = generation;
      drain(worker);
      const std::lock_guard lock(mutex);
      if (--running == 0) done.notify_one();
    }
  }

  void drain(int worker) {
    try {
      for (std::int64_t task; (task = next.fetch_add(1, std::memory_order_relaxed)) < count;) {
        call(context, task, worker);
      }
    } catch (...) {
      next.store(count, std::memory_order_relaxed);
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
    }
  }
};

ThreadPool::ThreadPool(int threads)
    : crew_(std::make_unique<Crew>()), threads_(threads), process_(::getpid()) {
  crew_->workers.reserve(static_cast<std::size_t>(threads - 1));
  if (threads <= available_cores()) crew_->looks = kLooks;
  try {
    for (int worker = 1; worker < threads; ++worker) {
      crew_->workers.emplace_back([crew = crew_.get(), worker] { crew->work(worker); });
    }
  } catch (const std::system_error& error) {
    const std::size_t started = crew_->workers.size();
    stop();
    throw Error(ErrorKind::unsupported, "threads",
                fmt::format("the system refused thread {} of {} ({}); use fewer threads",
                            started + 2, threads, error.what()));
  }
}

ThreadPool::~ThreadPool() { stop(); }

bool ThreadPool::forked() const { return ::getpid() != process_; }

void ThreadPool::stop() {
  if (forked()) {
    // The threads are not here, and a lock that one of them held stays held: nothing of theirs
    // can be touched, not even to free it.
    [[maybe_unused]] const Crew* left = crew_.release();
    return;
  }
  {
    const std::lock_guard lock(crew_->mutex);
    crew_->stopped = true;
  }
  crew_->start.notify_all();
  for (std::thread& worker : crew_->workers) worker.join();
  crew_->workers.clear();
}

void ThreadPool::run_erased(std::int64_t count, void* context, Call call) {
  if (count <= 0) return;
  const SingleThreadedBlas single;
  if (forked()) {
    for (std::int64_t task = 0; task < count; ++task) call(context, task, 0);
    return;
  }
  Crew& crew = *crew_;
  {
    const std::lock_guard lock(crew.mutex);
    crew.context = context;
    crew.call = call;
    crew.count = count;
    crew.next.store(0, std::memory_order_relaxed);
    crew.failure = nullptr;
    // A lone task is not worth waking anybody.
    if (count > 1) {
      crew.running = static_cast<int>(crew.workers.size());
      ++crew.generation;
    }
  }
  if (count > 1) crew.start.notify_all();
  crew.drain(0);
  crew.wait(crew.done, [&] { return crew.running == 0; });
  if (crew.failure) std::rethrow_exception(crew.failure);
}

}  // namespace rode::cpu
