// SPDX-License-Identifier: Apache-2.0
// The processes of a group where LibTorch was built without c10d: refused by name.
#include "rode/error.h"
#include "rode/torch/ranks.h"

namespace rode::torch {
namespace {

[[noreturn]] void refuse() {
  throw Error(ErrorKind::unsupported, "process group",
              "this LibTorch was built without c10d (USE_DISTRIBUTED), which several processes "
              "need; use one that has it, as PyTorch's packages for Linux do");
}

}  // namespace

struct Ranks::Impl {};

Ranks::Ranks(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Ranks::~Ranks() = default;
int Ranks::rank() const { refuse(); }
int Ranks::size() const { refuse(); }
std::string Ranks::backend() const { refuse(); }
std::vector<double> Ranks::sum(const std::vector<double>&) { refuse(); }
void Ranks::add(const std::vector<at::Tensor>&) { refuse(); }
void Ranks::begin_add(const at::Tensor&) { refuse(); }
void Ranks::finish() { refuse(); }
at::Tensor Ranks::gather(const at::Tensor&) { refuse(); }
std::vector<std::string> Ranks::tell(const std::string&) { refuse(); }
std::vector<std::string> Ranks::collect(const std::string&) { refuse(); }
void Ranks::broadcast(const std::vector<at::Tensor>&) { refuse(); }
void Ranks::leave(const std::string&) noexcept {}
std::int64_t Ranks::calls() const { refuse(); }
std::int64_t Ranks::bytes() const { refuse(); }

ProcessGroup meet(const Meeting&) { refuse(); }
bool is_nccl_available() { return false; }

}  // namespace rode::torch
