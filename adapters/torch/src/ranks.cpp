// SPDX-License-Identifier: Apache-2.0
// Collectives of c10d with a limit on every wait, and the names of those that do not answer.
#include "rode/torch/ranks.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <thread>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "rank_words.h"
#include "rode/error.h"
#include "rode/torch/process_group.h"

namespace rode::torch {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using WorkPointer = c10::intrusive_ptr<c10d::Work>;

constexpr milliseconds kLook(500);  // how often those that wait look whether another has failed
constexpr std::chrono::microseconds kMoment(20);  // between two looks at a GPU
std::atomic<int> instances = 0;                   // of this process

std::string first_line(const char* text) {
  const std::string all(text);
  const std::string line = all.substr(0, all.find('\n'));
  return line.substr(0, 160);
}

std::string in_seconds(Clock::duration time) {
  std::array<char, 32> text{};
  const double seconds = std::chrono::duration<double>(time).count();
  return {text.data(),
          static_cast<std::size_t>(std::snprintf(text.data(), text.size(), "%.1f s", seconds))};
}

}  // namespace

struct Ranks::Impl {
  c10::intrusive_ptr<c10d::Backend> backend;
  ProcessGroupOptions options;
  // NCCL takes a GPU's tensors alone, and gloo not in every call.
  c10::Device device = at::kCPU;
  bool gloo = true;
  RankWords words;
  std::int64_t calls = 0;
  std::int64_t bytes = 0;

  // What begin_add() has begun, with what it writes into.
  struct Begun {
    at::Tensor given, placed;
    WorkPointer work;
  };
  std::vector<Begun> begun;
  std::string not_begun;  // why the first one that could not begin did not

  // All ranks make their groups in the same order, so that the key of their words is the same.
  Impl(c10::intrusive_ptr<c10d::Backend> given, ProcessGroupOptions given_options)
      : backend(std::move(given)),
        options(std::move(given_options)),
        words(options.store, "rode/" + std::to_string(instances++), backend->getRank(),
              backend->getSize()) {
    if (backend->getBackendName() == "nccl") {
      gloo = false;
      device =
          options.device ? *options.device : c10::impl::VirtualGuardImpl(at::kCUDA).getDevice();
    }
  }

  template <class Options>
  Options limited() const {
    Options out;
    if (options.timeout) out.timeout = *options.timeout;
    return out;
  }

  // Starts calls, each with the tensor that it sends, and waits for all of them.
  void run(const char* what, const std::vector<at::Tensor>& given,
           const std::function<WorkPointer(std::size_t)>& start) {
    const Clock::time_point began = Clock::now();
    calls += static_cast<std::int64_t>(given.size());
    for (const at::Tensor& tensor : given) bytes += static_cast<std::int64_t>(tensor.nbytes());
    try {
      std::vector<WorkPointer> works;
      for (std::size_t i = 0; i < given.size(); ++i) works.push_back(start(i));
      for (const WorkPointer& work : works) wait(*work, began);
    } catch (const std::exception& error) {  // c10d's own, gloo's, of sockets
      throw broken(what, Clock::now() - began, error.what());
    }
  }

  // At most for the time limit. It ends soon after another rank has failed: gloo's failures reach a
  // rank's neighbours alone, and a GPU may wait for ever.
  void wait(c10d::Work& work, Clock::time_point began) {
    if (!gloo) {
      if (options.timeout) wait_for_device(work, began);
      work.wait();  // what follows on this thread's stream comes after it
      return;
    }
    for (;;) {
      milliseconds left = milliseconds::max();
      if (options.timeout) {
        left = std::chrono::duration_cast<milliseconds>(began + *options.timeout - Clock::now());
      }
      try {
        work.wait(std::max(milliseconds(1), std::min(kLook, left)));
        return;
      } catch (const std::exception&) {
        if (work.isCompleted() || left <= kLook || words.has_failed(calls)) throw;
      }
    }
  }

  // By itself c10d's wait for NCCL has no limit here, or looks once in a millisecond.
  void wait_for_device(c10d::Work& work, Clock::time_point began) {
    Clock::time_point looked = began;
    while (!work.isCompleted()) {
      const Clock::time_point now = Clock::now();
      if (now - began >= *options.timeout) throw std::runtime_error("it took too long");
      if (now - looked >= kLook) {
        if (words.has_failed(calls)) throw std::runtime_error("it failed on another rank");
        looked = now;
      }
      std::this_thread::sleep_for(kMoment);
    }
  }

  // Kernels of NCCL that wait for a rank which is gone would keep the device, and with it the end
  // of this process.
  void end_kernels() noexcept {
    const auto abort = [](auto& any) {
      if constexpr (requires { any.abort(); }) any.abort();  // newer versions of LibTorch alone
    };
    try {
      if (!gloo) abort(*backend);
    } catch (...) {  // the first error says more
    }
  }

  Error broken(const char* what, Clock::duration time, const char* cause) {
    const std::string who = words.who_failed(calls);
    end_kernels();
    return Error(ErrorKind::process_group, "process group",
                 std::string(what) + " on rank " + std::to_string(backend->getRank()) +
                     " failed after " + in_seconds(time) + ": " + who + " (" + first_line(cause) +
                     "); see that rank's error, and restart all ranks from a checkpoint");
  }

  at::Tensor gathered(const at::Tensor& part) {
    at::Tensor given = part.to(device).contiguous();
    at::Tensor out = at::empty({backend->getSize() * given.numel()}, given.options());
    run("gather", {given}, [&](std::size_t) {
      return backend->_allgather_base(out, given, limited<c10d::AllgatherOptions>());
    });
    return out.view({backend->getSize(), -1});
  }

  // The text of this rank, filled up to the longest; and the lengths of all.
  at::Tensor padded(const std::string& text, std::vector<std::int64_t>& lengths) {
    const auto length = static_cast<std::int64_t>(text.size());
    const at::Tensor all = gathered(at::full({1}, length, at::kLong)).to(at::kCPU);
    const std::int64_t* const data = all.const_data_ptr<std::int64_t>();
    lengths.assign(data, data + all.numel());
    at::Tensor out = at::zeros({*std::ranges::max_element(lengths)}, at::kByte);
    if (!text.empty()) std::memcpy(out.data_ptr(), text.data(), text.size());
    return out;
  }
};

Ranks::Ranks(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Ranks::~Ranks() = default;

int Ranks::rank() const { return impl_->backend->getRank(); }
int Ranks::size() const { return impl_->backend->getSize(); }
std::string Ranks::backend() const { return impl_->backend->getBackendName(); }
std::int64_t Ranks::calls() const { return impl_->calls; }
std::int64_t Ranks::bytes() const { return impl_->bytes; }

std::vector<double> Ranks::sum(const std::vector<double>& values) {
  const at::Tensor total = at::tensor(values, at::kDouble);
  add({total});
  const double* const data = total.const_data_ptr<double>();
  return {data, data + total.numel()};
}

void Ranks::add(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> placed;
  for (const at::Tensor& tensor : tensors) placed.push_back(tensor.to(impl_->device).contiguous());
  impl_->run("sum", placed, [&](std::size_t i) {
    std::vector<at::Tensor> one = {placed[i]};
    return impl_->backend->allreduce(one, impl_->limited<c10d::AllreduceOptions>());
  });
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].is_same(placed[i])) tensors[i].copy_(placed[i]);
  }
}

void Ranks::begin_add(const at::Tensor& tensor) {
  Impl& impl = *impl_;
  Impl::Begun begun{tensor, tensor.to(impl.device), {}};
  // Counted in any case: words in the store go by the number of calls, alike on every rank.
  ++impl.calls;
  impl.bytes += static_cast<std::int64_t>(tensor.nbytes());
  try {
    std::vector<at::Tensor> one = {begun.placed};
    if (impl.not_begun.empty()) {
      begun.work = impl.backend->allreduce(one, impl.limited<c10d::AllreduceOptions>());
    }
  } catch (const std::exception& error) {
    impl.not_begun = error.what();
  }
  impl.begun.push_back(std::move(begun));
}

void Ranks::finish() {
  Impl& impl = *impl_;
  const std::vector<Impl::Begun> all = std::exchange(impl.begun, {});
  const std::string failure = std::exchange(impl.not_begun, {});
  if (all.empty()) return;
  const Clock::time_point began = Clock::now();  // of the wait: the backward pass takes its time
  try {
    for (const Impl::Begun& one : all) {
      if (one.work) impl.wait(*one.work, began);
    }
  } catch (const std::exception& error) {
    throw impl.broken("sum", Clock::now() - began, error.what());
  }
  if (!failure.empty()) {
    throw impl.broken("sum", Clock::now() - began, failure.c_str());
  }
  for (const Impl::Begun& one : all) {
    if (!one.given.is_same(one.placed)) one.given.copy_(one.placed);
  }
}

void Ranks::leave(const std::string& why) noexcept {
  try {
    impl_->words.leave(why);
  } catch (...) {  // the store has ended: the others will find that themselves
  }
}

at::Tensor Ranks::gather(const at::Tensor& bytes) { return impl_->gathered(bytes); }

std::vector<std::string> Ranks::tell(const std::string& text) {
  std::vector<std::int64_t> lengths;
  const at::Tensor rows = impl_->gathered(impl_->padded(text, lengths)).to(at::kCPU);
  std::vector<std::string> out;
  for (std::int64_t r = 0; r < rows.size(0); ++r) {
    const at::Tensor row = rows.select(0, r).contiguous();
    out.emplace_back(static_cast<const char*>(row.const_data_ptr()),
                     static_cast<std::size_t>(lengths[static_cast<std::size_t>(r)]));
  }
  return out;
}

std::vector<std::string> Ranks::collect(const std::string& bytes) {
  std::vector<std::int64_t> lengths;
  const at::Tensor part = impl_->padded(bytes, lengths).to(impl_->device);
  std::vector<std::vector<at::Tensor>> rows;
  if (rank() == 0) {
    std::vector<at::Tensor>& all = rows.emplace_back();
    for (int r = 0; r < size(); ++r) all.push_back(at::empty_like(part));
  }
  std::vector<at::Tensor> given = {part};
  impl_->run("collect", given, [&](std::size_t) {
    return impl_->backend->gather(rows, given, impl_->limited<c10d::GatherOptions>());
  });
  std::vector<std::string> out;
  if (rank() != 0) return out;
  for (std::size_t r = 0; r < rows[0].size(); ++r) {
    const at::Tensor row = rows[0][r].to(at::kCPU);
    out.emplace_back(static_cast<const char*>(row.const_data_ptr()),
                     static_cast<std::size_t>(lengths[r]));
  }
  return out;
}

void Ranks::broadcast(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> placed;
  for (const at::Tensor& tensor : tensors) placed.push_back(tensor.to(impl_->device).contiguous());
  impl_->run("broadcast", placed, [&](std::size_t i) {
    std::vector<at::Tensor> one = {placed[i]};
    return impl_->backend->broadcast(one, impl_->limited<c10d::BroadcastOptions>());
  });
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].is_same(placed[i])) tensors[i].copy_(placed[i]);
  }
}

// ---- From c10d's groups ------------------------------------------------------------------------

ProcessGroup process_group(const c10::intrusive_ptr<c10d::Backend>& backend,
                           ProcessGroupOptions options) {
  if (!backend) {
    throw Error(ErrorKind::invalid_argument, "process group",
                "the backend is null; expected one of c10d's, such as ProcessGroupGloo");
  }
  if (options.timeout && *options.timeout <= milliseconds(0)) {
    throw Error(
        ErrorKind::invalid_argument, "process group",
        "timeout = " + std::to_string(options.timeout->count()) + " ms; expected more than 0");
  }
  return std::make_shared<Ranks>(std::make_unique<Ranks::Impl>(backend, std::move(options)));
}

ProcessGroup process_group(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                           ProcessGroupOptions options) {
  if (!group) {
    throw Error(ErrorKind::invalid_argument, "process group", "the process group is null");
  }
  // Newer versions of LibTorch alone have it.
  const auto store_of = [](const auto& any) {
    if constexpr (requires { any->getStore(); }) {
      return any->getStore();
    } else {
      return c10::intrusive_ptr<c10d::Store>();
    }
  };
  if (!options.store) options.store = store_of(group);
  c10::intrusive_ptr<c10d::Backend> backend;
  try {
    backend = group->getBackend(at::kCPU);
  } catch (const c10::Error&) {
    backend = group->getBackend(at::kCUDA);
  }
  return process_group(backend, std::move(options));
}

}  // namespace rode::torch
