// SPDX-License-Identifier: Apache-2.0
// A step in phases: prepare, compute, apply.
#include <string>

#include <fmt/format.h>

#include "optim/optimizer_impl.h"
#include "rode/error.h"

namespace rode {

void Optimizer::Impl::expect(Phase wanted, std::string_view operation) const {
  if (phase == wanted) return;
  const char* what = phase == Phase::prepared    ? "a step has been prepared; compute or abandon it"
                     : phase == Phase::computed  ? "a step has been computed; apply it"
                     : wanted == Phase::prepared ? "no step has been prepared; call prepare"
                                                 : "no step has been computed; call compute";
  throw Error(ErrorKind::invalid_argument, operation, fmt::format("{} first", what));
}

void Optimizer::prepare(double multiplier) {
  check_multiplier("prepare", multiplier);
  if (!impl_->engine.phases) {
    throw Error(ErrorKind::invalid_argument, "prepare",
                "the optimizer was made without phases; set EngineOptions::phases, which takes "
                "workspace of the size of the matrices");
  }
  impl_->expect(Impl::Phase::none, "prepare");
  if (capturing()) {
    throw Error(ErrorKind::unsupported, "prepare",
                "the stream is being captured, and phases are not made for graphs; call step(), or "
                "prepare outside of the capture");
  }
  impl_->gate_missing();
  impl_->send_changed();
  impl_->backend->measure(impl_->jobs);
  impl_->phased_multiplier = multiplier;
  impl_->phase = Impl::Phase::prepared;
}

std::vector<MeasuredGradient> Optimizer::measured() {
  impl_->expect(Impl::Phase::prepared, "measured");
  impl_->backend->fetch_measured(impl_->jobs);
  std::vector<MeasuredGradient> out;
  for (const Impl::Entry& entry : impl_->entries) {
    if (entry.jobs.empty() || !entry.jobs.front()->active) continue;
    MeasuredGradient& found = out.emplace_back();
    found.parameter = entry.parameter.name;
    for (const JobBase* job : entry.jobs) {
      found.good = found.good && job->finite && job->weight_finite;
      found.squared_norm += job->sums.gg;
    }
  }
  return out;
}

void Optimizer::compute() {
  impl_->expect(Impl::Phase::prepared, "compute");
  Backend& backend = *impl_->backend;
  backend.compute(impl_->jobs, impl_->context(impl_->phased_multiplier));
  impl_->phase = Impl::Phase::computed;
  if (backend.deferred() || !backend.fetch(impl_->jobs).refused) return;
  impl_->phase = Impl::Phase::none;
  check();
}

void Optimizer::apply() {
  impl_->expect(Impl::Phase::computed, "apply");
  Backend& backend = *impl_->backend;
  impl_->phase = Impl::Phase::none;
  backend.apply(impl_->jobs, impl_->context(impl_->phased_multiplier));
  if (!backend.deferred()) check();
}

void Optimizer::abandon() {
  impl_->expect(Impl::Phase::prepared, "abandon");
  impl_->phase = Impl::Phase::none;
}

}  // namespace rode
