// SPDX-License-Identifier: Apache-2.0
// The pool: one generation a run, tasks handed out by an atomic counter.
#include "backend/cpu/thread_pool.h"

#include <system_error>

#include <fmt/format.h>

#include "backend/cpu/blas.h"
#include "rode/error.h"

namespace rode::cpu {

ThreadPool::ThreadPool(int threads) {
  workers_.reserve(static_cast<std::size_t>(threads - 1));
  try {
    for (int worker = 1; worker < threads; ++worker) {
      workers_.emplace_back([this, worker] { work(worker); });
    }
  } catch (const std::system_error& error) {
    const std::size_t started = workers_.size();
    stop();
    throw Error(ErrorKind::unsupported, "threads",
                fmt::format("the system refused thread {} of {} ({}); use fewer threads",
                            started + 2, threads, error.what()));
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  start_.notify_all();
  for (std::thread& worker : workers_) worker.join();
  workers_.clear();
}

void ThreadPool::work(int worker) {
  const SingleThreadedBlas single;
  std::uint64_t seen = 0;
  while (true) {
    {
      std::unique_lock lock(mutex_);
      start_.wait(lock, [&] { return stop_ || generation_ != seen; });
      if (stop_) return;
      seen = generation_;
    }
    drain(worker);
    const std::lock_guard lock(mutex_);
    if (--running_ == 0) done_.notify_one();
  }
}

void ThreadPool::drain(int worker) {
  try {
    for (std::int64_t task; (task = next_.fetch_add(1, std::memory_order_relaxed)) < count_;) {
      call_(context_, task, worker);
    }
  } catch (...) {
    next_.store(count_, std::memory_order_relaxed);
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = std::current_exception();
  }
}

void ThreadPool::run_erased(std::int64_t count, void* context, Call call) {
  if (count <= 0) return;
  const SingleThreadedBlas single;
  {
    const std::lock_guard lock(mutex_);
    context_ = context;
    call_ = call;
    count_ = count;
    next_.store(0, std::memory_order_relaxed);
    failure_ = nullptr;
    // A lone task is not worth waking anybody.
    if (count > 1) {
      running_ = static_cast<int>(workers_.size());
      ++generation_;
    }
  }
  if (count > 1) start_.notify_all();
  drain(0);
  std::unique_lock lock(mutex_);
  done_.wait(lock, [&] { return running_ == 0; });
  if (failure_) std::rethrow_exception(failure_);
}

}  // namespace rode::cpu
