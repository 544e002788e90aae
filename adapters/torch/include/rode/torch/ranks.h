// SPDX-License-Identifier: Apache-2.0
// The processes of a group and what they send each other, over LibTorch's c10d. No header of c10d
// here: rode/torch/process_group.h makes this from a group of c10d's.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace rode::torch {

// This process among those of a group. Every call except rank, size, backend, leave and the counts
// is one of all ranks, waits for a limited time (except the first call of NCCL, which makes its
// communicator), and throws an Error{process_group} that names the ranks which do not answer; the
// group is unusable then.
class Ranks {
 public:
  struct Impl;
  explicit Ranks(std::unique_ptr<Impl> impl);
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;
  ~Ranks();

  int rank() const;
  int size() const;
  std::string backend() const;  // gloo, nccl or another of c10d's

  std::vector<double> sum(const std::vector<double>& values);
  // In place, number by number; all of them are on their way before one is waited for.
  void add(const std::vector<at::Tensor>& tensors);
  // The same of one tensor, which must be contiguous, without the wait: finish() waits for all that
  // were begun, and throws what one of them met, also where it could not begin. Every rank begins
  // the same tensors in the same order, and calls nothing else before finish().
  void begin_add(const at::Tensor& tensor);
  void finish();
  // Bytes of equal length from every rank, one row each: on the host, with NCCL on its device.
  at::Tensor gather(const at::Tensor& bytes);
  // What every rank sends, in the order of the ranks.
  std::vector<std::string> tell(const std::string& text);
  // The same on rank 0 alone, for what is long; elsewhere nothing.
  std::vector<std::string> collect(const std::string& bytes);
  // Everywhere as on rank 0.
  void broadcast(const std::vector<at::Tensor>& tensors);

  // Reports that this rank ends, and why: the errors of the others show it, and those that wait
  // for it end soon. No call of the others; without a store it does nothing. Does not throw.
  void leave(const std::string& why) noexcept;

  std::int64_t calls() const;  // collectives so far
  std::int64_t bytes() const;  // that this rank has given to them

 private:
  std::unique_ptr<Impl> impl_;
};

// Null: one process, which shares nothing.
using ProcessGroup = std::shared_ptr<Ranks>;

// What carries the messages of a group, by torch's names.
enum class GroupBackend {
  automatic,  // nccl if every rank has its own GPU and was built with NCCL, else gloo
  gloo,       // through the host's memory, over sockets
  nccl,       // from GPU to GPU
};

// Where processes meet.
struct Meeting {
  int rank = 0;
  int size = 1;
  // One of the two. A file on a disk that all see, new for every start, or host and port at which
  // rank 0 listens.
  std::string file = {};
  std::string host = {};
  int port = 0;
  // Whether something else listens there, as torchrun does; `prefix` keeps its keys apart.
  bool hosted = false;
  std::string prefix = {};
  // Of each wait: for the others to come, and of every call.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  // The same on all ranks. nccl is refused on all of them where one cannot have it.
  GroupBackend backend = GroupBackend::automatic;
  int device = -1;  // the CUDA device of this rank's parameters; -1: none
};

// A group of c10d's gloo or NCCL, for programs that have none. Throws where a rank does not come in
// time and names it, and where LibTorch was built without what is asked for.
ProcessGroup meet(const Meeting& meeting);
// Whether groups of NCCL can be made: LibTorch was built with it, and its headers were found when
// this was.
bool is_nccl_available();
// RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as torchrun sets them; size 1 where there are
// none. Throws where some are missing or are not numbers.
Meeting meeting_from_environment();

}  // namespace rode::torch
