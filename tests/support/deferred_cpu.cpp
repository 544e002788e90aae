// SPDX-License-Identifier: Apache-2.0
// The CPU behaving like a device, in place of CUDA: whatever the driver must not do crashes here,
// and whatever it must do is tested without a GPU.
//
// The host cannot access the backend's memory except during the backend's own calls. Steps run on a
// copy of the jobs, which receives pointers, flags and constants at `refresh` and returns results
// at `fetch`. Linked before the library's own make_cuda_backend.
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

#include "backend/backend.h"
#include "core/ring.h"
#include "support/backend_under_test.h"

namespace rode {
namespace {

// All memory of all these backends, and how many calls are using it.
struct Pages {
  std::mutex mutex;
  std::map<void*, std::size_t> mapped;
  int users = 0;

  static Pages& all() {
    static Pages* const only = new Pages;
    return *only;
  }
  void protect(int protection) {
    for (const auto& [address, bytes] : mapped) mprotect(address, bytes, protection);
  }
};

// While one lives, the memory can be accessed.
class Reach {
 public:
  Reach() {
    const std::lock_guard lock(Pages::all().mutex);
    if (Pages::all().users++ == 0) Pages::all().protect(PROT_READ | PROT_WRITE);
  }
  ~Reach() {
    const std::lock_guard lock(Pages::all().mutex);
    if (--Pages::all().users == 0) Pages::all().protect(PROT_NONE);
  }
  Reach(const Reach&) = delete;
  Reach& operator=(const Reach&) = delete;
};

class FarBuffer final : public Buffer {
 public:
  explicit FarBuffer(std::size_t bytes) : bytes_(bytes) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    mapped_ = (bytes + page) / page * page;
    const std::lock_guard lock(Pages::all().mutex);
    const int protection = Pages::all().users > 0 ? PROT_READ | PROT_WRITE : PROT_NONE;
    data_ = mmap(nullptr, mapped_, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data_ == MAP_FAILED) throw std::bad_alloc();
    Pages::all().mapped[data_] = mapped_;
  }
  ~FarBuffer() override {
    const std::lock_guard lock(Pages::all().mutex);
    Pages::all().mapped.erase(data_);
    munmap(data_, mapped_);
  }
  FarBuffer(const FarBuffer&) = delete;
  FarBuffer& operator=(const FarBuffer&) = delete;

  void* data() override { return data_; }
  std::size_t bytes() const override { return bytes_; }
  void upload(const void* host, std::size_t bytes) override {
    in_reach([&] { std::memcpy(data_, host, bytes); });
  }
  const void* host_view() const override {
    copy_.resize(bytes_);
    in_reach([&] { std::memcpy(copy_.data(), data_, bytes_); });
    return copy_.data();
  }

 private:
  // Only of this buffer: there are many, and many such calls.
  template <class F>
  void in_reach(F&& copy) const {
    if (bytes_ == 0) return;
    const std::lock_guard lock(Pages::all().mutex);
    if (Pages::all().users == 0) mprotect(data_, mapped_, PROT_READ | PROT_WRITE);
    copy();
    if (Pages::all().users == 0) mprotect(data_, mapped_, PROT_NONE);
  }

  std::size_t bytes_, mapped_;
  void* data_;
  mutable std::vector<std::byte> copy_;
};

// f(a job of `a`, the same job of `b`), kind by kind.
template <class F>
void for_pairs(JobList& a, JobList& b, F&& f) {
  const auto kind = [&](auto& first, auto& second) {
    for (std::size_t i = 0; i < first.size(); ++i) f(first[i], second[i]);
  };
  kind(a.rode, b.rode);
  kind(a.muon, b.muon);
  kind(a.soap, b.soap);
  kind(a.adafactor, b.adafactor);
  kind(a.element, b.element);
}

void copy_results(const RodeJob& from, RodeJob& to) {
  to.products = from.products;
  to.scalars = from.scalars;
  to.write = from.write;
}
void copy_results(const MuonJob& from, MuonJob& to) { to.held = from.held; }
void copy_results(const SoapJob& from, SoapJob& to) { to.failed = from.failed; }
void copy_results(const AdafactorJob&, AdafactorJob&) {}
void copy_results(const ElementJob&, ElementJob&) {}

class DeferredCpu final : public Backend {
 public:
  explicit DeferredCpu(const BackendOptions& options) : cpu_(make_cpu_backend(options)) {}

  std::unique_ptr<Buffer> allocate(std::size_t bytes) override {
    return std::make_unique<FarBuffer>(bytes);
  }
  std::unique_ptr<Buffer> adopt(void* memory, std::size_t bytes) override {
    return cpu_->adopt(memory, bytes);
  }
  void store_norm(const Weights& weight, const Geometry& geometry, float* out) override {
    const Reach reach;
    cpu_->store_norm(weight, geometry, out);
  }
  double squared_norm(const Weights& weight, const Geometry& geometry) override {
    const Reach reach;
    return cpu_->squared_norm(weight, geometry);
  }
  void prepare(JobList& jobs) override {
    far_ = jobs;
    cpu_->prepare(far_);
  }
  std::size_t workspace_bytes() const override { return cpu_->workspace_bytes(); }

  void refresh(JobList& jobs) override {
    ++test::refreshes_of_stand_in;
    active_.clear();
    for_pairs(jobs, far_, [&](const auto& near, auto& far) {
      far.weight = near.weight;
      far.grad = near.grad;
      active_.push_back(near.active);
    });
  }
  void step(JobList&, const StepContext& context) override {
    const Reach reach;
    std::size_t i = 0;
    far_.for_each([&](JobBase& job) { job.active = active_[i++]; });
    cpu_->step(far_, {context.multiplier, done_, context.refuse_all});
    note_refusal();
    if (!last_.refused) ++done_;
    keep();
  }
  void measure(JobList&) override {
    const Reach reach;
    std::size_t i = 0;
    far_.for_each([&](JobBase& job) { job.active = active_[i++]; });
    cpu_->measure(far_);
  }
  void fetch_measured(JobList& jobs) override {
    for_pairs(far_, jobs, [&](const auto& far, auto& near) {
      near.finite = far.finite;
      near.weight_finite = far.weight_finite;
      near.sums = far.sums;
    });
  }
  void compute(JobList&, const StepContext& context) override {
    const Reach reach;
    cpu_->compute(far_, {context.multiplier, done_, context.refuse_all});
    note_refusal();
  }
  void apply(JobList&, const StepContext& context) override {
    if (last_.refused) return keep();  // as a device does, which has not told the host
    const Reach reach;
    cpu_->apply(far_, {context.multiplier, done_, context.refuse_all});
    last_ = cpu_->fetch(far_);
    ++done_;
    keep();
  }
  Fetched fetch(JobList& jobs) override {
    bring(far_, jobs);
    return outcome();
  }
  void keep_results(std::size_t steps) override {
    kept_.assign(steps, {});
    ring_ = Ring(steps);
  }
  void visit_kept(JobList& jobs, const std::function<void(const Fetched&)>& visit) override {
    for (std::size_t i = 0; i < ring_.size(); ++i) {
      auto& [then, fetched] = kept_[ring_.at(i)];
      jobs.for_each([](JobBase& job) { job.active = true; });
      bring(then, jobs);
      visit(fetched);
    }
    ring_.clear();
  }

  bool deferred() const override { return true; }
  void set_stream(void*) override {}
  void set_multiplier(double) override {}
  void set_step(std::int64_t step) override { done_ = step; }

 private:
  void note_refusal() {
    last_ = cpu_->fetch(far_);
    if (!last_.refused) return;
    parameter_ = -1;
    far_.for_each([&](const JobBase& job) {
      const bool bad = job.active && !(job.finite && job.weight_finite);
      if (bad && parameter_ < 0) parameter_ = static_cast<std::int64_t>(job.parameter);
    });
  }
  static void bring(JobList& from, JobList& to) {
    for_pairs(from, to, [&](const auto& far, auto& near) {
      near.finite = far.finite;
      near.weight_finite = far.weight_finite;
      near.sums = far.sums;
      near.active = near.active && far.active;
      copy_results(far, near);
    });
  }
  Fetched outcome() const {
    return {last_.refused,          done_, last_.refused_steps, parameter_, last_.spoiled_steps,
            last_.spoiled_parameter};
  }
  void keep() {
    if (ring_.places() > 0) kept_[ring_.push()] = {far_, outcome()};
  }

  std::unique_ptr<Backend> cpu_;
  JobList far_;
  std::vector<char> active_;
  Fetched last_;
  std::int64_t done_ = 0, parameter_ = -1;
  Ring ring_;
  std::vector<std::pair<JobList, Fetched>> kept_;
};

}  // namespace

std::unique_ptr<Backend> make_cuda_backend(const BackendOptions& options) {
  return std::make_unique<DeferredCpu>(options);
}

}  // namespace rode
