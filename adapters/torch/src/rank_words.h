// SPDX-License-Identifier: Apache-2.0
// What the ranks of a group leave in its store: that a call has failed there, or why they end.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace rode::torch {

class RankWords {
 public:
  // `key`: the same on every rank, of this group alone. A null store has no words.
  RankWords(c10::intrusive_ptr<c10d::Store> store, std::string key, int rank, int size);

  // Whether another rank has left a word that this call failed there, or that it ends. Calls are
  // counted alike on every rank.
  bool has_failed(std::int64_t call) const;
  // After a call has failed here: reports it, and finds the ranks that have ended or do not answer.
  std::string who_failed(std::int64_t call) const;
  // Throws where the store has ended.
  void leave(const std::string& why) const;

 private:
  std::string word(std::int64_t call, int rank) const;
  std::string left(int rank) const;
  std::string reasons() const;
  std::vector<int> absent(std::int64_t call) const;

  c10::intrusive_ptr<c10d::Store> store_;
  std::string key_;
  int rank_, size_;
};

}  // namespace rode::torch
