// SPDX-License-Identifier: Apache-2.0
// The processes that train one run. With one process every call returns at once what it was given,
// so that the trainer asks nowhere how many there are.
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "lab/run/folder.h"
#include "lab/run/plan.h"
#include "rode/diagnostics.h"
#include "rode/error.h"
#include "rode/torch/ranks.h"

namespace rode::lab {

// Rank 0 leads: it alone writes files and talks to the user. Every call that waits is one of all
// ranks, and throws an Error{process_group} that names those which do not answer.
class RunRanks {
 public:
  RunRanks() = default;  // one process
  RunRanks(rode::torch::ProcessGroup group, int local) : group_(std::move(group)), local_(local) {}

  int rank() const { return group_ ? group_->rank() : 0; }
  int count() const { return group_ ? group_->size() : 1; }
  int local() const { return local_; }  // among the ranks of this machine
  bool alone() const { return !group_; }
  bool leads() const { return rank() == 0; }
  const rode::torch::ProcessGroup& group() const { return group_; }

  // Of the rows of a batch those of this rank: the first one, and how many.
  std::pair<std::int64_t, std::int64_t> share_of(std::int64_t rows) const;

  std::vector<double> sum(const std::vector<double>& values) const;
  bool any(bool own) const;
  // What every rank sends, in the order of the ranks.
  std::vector<std::string> tell(const std::string& text) const;
  // What rank 0 sends.
  std::string from_leader(const std::string& text) const { return tell(leads() ? text : "")[0]; }
  // Everywhere as on rank 0.
  void broadcast(const std::vector<at::Tensor>& tensors) const;

  // Of the parameters that a rank steps, into those of all. The matrices of `steps` come in the
  // order of `names`, on rank 0 alone.
  void join(std::vector<StepDiagnostics>& steps, const std::vector<std::string>& names) const;

  // Runs `work`; if it fails, the others receive the reason, so that none waits for this rank.
  template <class Work>
  auto telling(Work&& work) const {
    try {
      return work();
    } catch (const Error& error) {
      // Those of the group have reached the others already.
      if (error.kind() != ErrorKind::process_group) leave(error.what());
      throw;
    } catch (const std::exception& error) {
      leave(error.what());
      throw;
    }
  }

 private:
  void leave(const char* why) const;

  rode::torch::ProcessGroup group_;  // null: one process
  int local_ = 0;
};

// Those that the environment names where options.meet says so; waits until all of them are there.
RunRanks open_ranks(const TrainOptions& options);
// Returns `ranks` where every rank has the same `run` and all that decides its course; throws on
// each of them otherwise, naming the rank and the first difference.
RunRanks agreed_ranks(RunRanks ranks, const TrainOptions& options, const Json& run);

}  // namespace rode::lab
