// SPDX-License-Identifier: Apache-2.0
// Makes the next batches while the last one is being used.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace rode::lab {

// Calls `make` on a separate thread, at most `depth` batches ahead, and gives them out in
// order. The stream that `make` reads is then ahead of the batches used: let Batch carry the
// stream's position() after it, and save that one in checkpoints.
template <class Batch>
class Prefetcher {
 public:
  Prefetcher(std::function<Batch()> make, std::size_t depth)
      : make_(std::move(make)), depth_(depth == 0 ? 1 : depth), thread_([this] { run(); }) {}
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;
  ~Prefetcher() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  // What `make` has thrown is thrown here, after the batches made before it, and every time.
  Batch next() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !ready_.empty() || failure_; });
    if (ready_.empty()) std::rethrow_exception(failure_);
    Batch batch = std::move(ready_.front());
    ready_.pop_front();
    lock.unlock();
    changed_.notify_all();
    return batch;
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return stop_ || ready_.size() < depth_; });
      if (stop_) return;
      lock.unlock();
      try {
        Batch batch = make_();
        lock.lock();
        ready_.push_back(std::move(batch));
      } catch (...) {
        if (!lock.owns_lock()) lock.lock();
        failure_ = std::current_exception();
        changed_.notify_all();
        return;
      }
      changed_.notify_all();
    }
  }

  std::function<Batch()> make_;
  std::size_t depth_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Batch> ready_;
  std::exception_ptr failure_;
  bool stop_ = false;
  std::thread thread_;  // last: it uses all the others
};

}  // namespace rode::lab
