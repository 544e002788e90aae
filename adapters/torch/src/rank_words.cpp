// SPDX-License-Identifier: Apache-2.0
// Keys of a store, and how long a word is waited for.
#include "rank_words.h"

#include <chrono>
#include <thread>
#include <utility>

namespace rode::torch {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// How long after a failure ranks wait for a word of the others, and how often they look.
constexpr milliseconds kAnswer(3000), kPause(50);

std::string listed(const std::vector<int>& ranks) {
  std::string out;
  for (const int rank : ranks) out += (out.empty() ? "" : ", ") + std::to_string(rank);
  return out;
}

}  // namespace

RankWords::RankWords(c10::intrusive_ptr<c10d::Store> store, std::string key, int rank, int size)
    : store_(std::move(store)), key_(std::move(key)), rank_(rank), size_(size) {}

std::string RankWords::word(std::int64_t call, int rank) const {
  return key_ + "/" + std::to_string(call) + "/" + std::to_string(rank);
}

std::string RankWords::left(int rank) const { return key_ + "/left/" + std::to_string(rank); }

bool RankWords::has_failed(std::int64_t call) const {
  if (!store_) return false;
  try {
    for (int rank = 0; rank < size_; ++rank) {
      if (store_->check({word(call, rank)}) || store_->check({left(rank)})) return true;
    }
    return false;
  } catch (const std::exception&) {  // its server has ended
    return true;
  }
}

// Ranks that have left word why they end, with it.
std::string RankWords::reasons() const {
  std::string out;
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_ || !store_->check({left(rank)})) continue;
    const std::vector<std::uint8_t> why = store_->get(left(rank));
    out += (out.empty() ? "rank " : "; rank ") + std::to_string(rank) +
           " has ended: " + std::string(why.begin(), why.end());
  }
  return out;
}

// Ranks that write nothing into the store, as every rank does whose call has failed. Throws where
// the store is gone.
std::vector<int> RankWords::absent(std::int64_t call) const {
  std::vector<int> missing;
  for (int rank = 0; rank < size_; ++rank) missing.push_back(rank);
  const Clock::time_point end = Clock::now() + kAnswer;
  while (!missing.empty() && Clock::now() < end) {
    std::erase_if(missing, [&](int rank) { return store_->check({word(call, rank)}); });
    std::this_thread::sleep_for(kPause);
  }
  return missing;
}

std::string RankWords::who_failed(std::int64_t call) const {
  if (!store_) return "one has ended, or waits elsewhere";
  try {
    store_->set(word(call, rank_), "failed");
    const std::string told = reasons();
    if (!told.empty()) return told;
    const std::vector<int> missing = absent(call);
    if (missing.empty()) return "all ranks answered afterwards, so one was late or in another call";
    return "rank " + listed(missing) + " of " + std::to_string(size_) +
           " does not answer: it has ended, or waits elsewhere";
  } catch (const std::exception&) {
    return "the store of the process group, which rank 0 hosts, does not answer: rank 0 has ended";
  }
}

void RankWords::leave(const std::string& why) const {
  constexpr std::size_t kMost = 1000;
  if (store_) store_->set(left(rank_), why.substr(0, kMost));
}

}  // namespace rode::torch
