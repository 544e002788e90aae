// SPDX-License-Identifier: Apache-2.0
// A step as the driver sees it: gradients are there, the backend steps, the outcome is read.
#include <cmath>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "optim/optimizer_impl.h"
#include "optim/option_text.h"
#include "rode/error.h"
#include "rode/share.h"
#include "rules/gate.h"

namespace rode {

void check_multiplier(std::string_view operation, double multiplier) {
  if (in_range(multiplier, at_least(0))) return;
  throw Error(ErrorKind::invalid_argument, operation,
              fmt::format("multiplier: expected {}, got '{}'",
                          expectation(multiplier, at_least(0), "a number"), multiplier));
}

StepContext Optimizer::Impl::context(double multiplier) const {
  return {multiplier, steps, engine.on_non_finite == OnBadGradient::refuse};
}

void Optimizer::step(double multiplier) {
  check_multiplier("step", multiplier);
  impl_->expect(Impl::Phase::none, "step");
  impl_->gate_missing();
  Backend& backend = *impl_->backend;
  impl_->send_changed();  // into a capture too: the backend knows how
  backend.step(impl_->jobs, impl_->context(multiplier));
  if (!backend.deferred()) check();
}

void Optimizer::check() {
  impl_->look();
  if (const auto error = std::exchange(impl_->found, std::nullopt)) throw *error;
}

void Optimizer::set_multiplier(double multiplier) {
  check_multiplier("set multiplier", multiplier);
  impl_->backend->set_multiplier(multiplier);
}

void Optimizer::Impl::send_changed() {
  if (changed) backend->refresh(jobs);
  changed = false;
}

void Optimizer::Impl::gate_missing() {
  for (const Entry& entry : entries) {
    const Parameter& p = entry.parameter;
    if (p.grad.data != nullptr || p.value.numel() == 0 || !entry.stepped) continue;
    if (engine.on_missing == OnBadGradient::skip) continue;
    throw Error(ErrorKind::missing_gradient, "step",
                fmt::format("parameter '{}' has no gradient; bind one, freeze the parameter, or "
                            "set on_missing to skip",
                            p.name));
  }
  // Only now: until a step is performed, the flags belong to the last one.
  for (Entry& entry : entries) {
    const Parameter& p = entry.parameter;
    const bool active = p.grad.data != nullptr && p.value.numel() > 0;
    for (JobBase* job : entry.jobs) {
      changed = changed || job->active != active;
      job->active = active;
    }
  }
}

// The backend itself counts steps: only now is it known here which of the enqueued steps were
// performed, including those of a caller's graph.
void Optimizer::Impl::look() {
  if (phase != Phase::none) return;  // what the backend has is of a step that is not complete
  const Fetched now = backend->fetch(jobs);
  forget_inactive();
  const bool performed = now.done != steps;
  if (now.spoiled_steps != spoiled_steps) {
    // It outweighs a refusal, which has changed nothing and is often its consequence.
    if (!found || !found->changed()) found = spoilage(now);
  } else if (now.refused_steps != refused_steps && !found) {
    found = refusal(now);
  }
  steps = now.done;
  refused_steps = now.refused_steps;
  spoiled_steps = now.spoiled_steps;
  if (!performed || now.refused) return;  // nothing new, or the sums of a refused step
  global = sum_up();
  if (ring.places() > 0 && !backend->deferred()) {
    history[ring.push()] = {steps - 1, global, matrices()};
  }
  announce();
}

// Results of an older step must not look like this one's.
void Optimizer::Impl::forget_inactive() {
  for (RodeJob& job : jobs.rode) {
    if (job.active) continue;
    job.scalars = {};
    job.write = {};
  }
}

Error Optimizer::Impl::refusal(const Fetched& now) const {
  const auto error = [](const std::string& text) {
    return Error(ErrorKind::non_finite, "step", text);
  };
  if (!now.refused) {  // an earlier one: its flags are gone
    const bool known = now.refused_parameter >= 0;
    return error(fmt::format(
        "a step before the last one was refused: {} not finite, or too large for fp32 "
        "state; nothing was changed by it; check more often, lower the rate or the "
        "loss scale, or set on_non_finite to skip",
        known ? fmt::format("gradient, weights or momentum of '{}' were",
                            entries[static_cast<std::size_t>(now.refused_parameter)].parameter.name)
              : "a gradient, weights or momentum were"));
  }
  for (const Entry& entry : entries) {
    for (const JobBase* job : entry.jobs) {
      const std::string& name = entry.parameter.name;
      if (!job->weight_finite) return error(bad_weights_text(name, false));
      if (job->finite) continue;
      if (std::isfinite(job->sums.gg)) {
        return error(
            fmt::format("gradient of '{}' has norm {:.3g}, too large for fp32 state; nothing was "
                        "changed; scale the loss, or set on_non_finite to skip",
                        name, std::sqrt(job->sums.gg)));
      }
      return error(
          fmt::format("gradient of '{}' holds NaN or Inf; nothing was changed; lower the rate or "
                      "the loss scale, or set on_non_finite to skip",
                      name));
    }
  }
  return error("refused; nothing was changed");
}

Error Optimizer::Impl::spoilage(const Fetched& now) const {
  const auto error = [](const std::string& text) {
    return Error::after_change(ErrorKind::non_finite, "step", text);
  };
  for (const Entry& entry : entries) {
    for (const JobBase* job : entry.jobs) {
      if (now.refused || !job->active || rules::ended_finite(job->sums.ww, job->sums.dd)) continue;
      const std::string& name = entry.parameter.name;
      if (!std::isfinite(job->sums.ww)) {
        return error(
            fmt::format("the weights of '{}' held NaN or Inf before this step, which has changed "
                        "weights and state; restore a checkpoint",
                        name));
      }
      return error(
          fmt::format("the weights of '{}' hold NaN or Inf after this step, which has changed "
                      "weights and state: it overflowed, or its state was not finite; restore a "
                      "checkpoint and lower the rate",
                      name));
    }
  }
  return error(fmt::format(
      "a step before the last one left NaN or Inf in the weights of '{}' and has changed weights "
      "and state; check more often, restore a checkpoint and lower the rate",
      entries[static_cast<std::size_t>(now.spoiled_parameter)].parameter.name));
}

GlobalDiagnostics Optimizer::Impl::sum_up() {
  double ww = 0, gg = 0, dd = 0;
  int held = 0;
  jobs.for_each([&](auto& job) {
    if (!job.active) {
      ww += backend->squared_norm(job.weight, geometry_of(job));
      return;
    }
    ww += job.sums.ww;
    gg += job.sums.gg;
    dd += job.sums.dd;
  });
  for (const RodeJob& job : jobs.rode) held += job.active && job.scalars.held ? 1 : 0;
  for (const MuonJob& job : jobs.muon) held += job.active && job.held ? 1 : 0;
  return {std::sqrt(ww), std::sqrt(dd), std::sqrt(dd) / (std::sqrt(ww) + 1e-12), std::sqrt(gg),
          held};
}

void Optimizer::Impl::announce() {
  const auto once = [&](JobBase& job, bool due, std::string_view text) {
    if (!due || !announced.insert(&job).second) return;
    if (engine.notify) {
      engine.notify(
          fmt::format("[step] parameter '{}' {}", entries[job.parameter].parameter.name, text));
    }
  };
  constexpr std::string_view held =
      "has norm zero, so it has no direction and is held; give it a non-zero initial value, set "
      "on_zero=rest or on_zero=start before training, or route it to the rest";
  for (RodeJob& job : jobs.rode) {
    const bool waits = job.scalars.start_norm > 0;  // for a gradient
    once(job, job.active && job.scalars.held && !waits, held);
  }
  for (MuonJob& job : jobs.muon) {
    once(job, job.active && job.held,
         "had norm zero when the optimizer was constructed, so its constraint keeps it there; give "
         "it a non-zero initial value, or route it to the rest");
  }
  for (SoapJob& job : jobs.soap) {
    once(job, job.active && job.failed,
         "was skipped: LAPACK could not decompose its factors; scale the loss");
  }
  jobs.for_each([&](JobBase& job) {
    once(job, !job.active && !job.finite, "was skipped: its gradient is not finite");
  });
}

}  // namespace rode
