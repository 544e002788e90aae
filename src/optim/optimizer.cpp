// SPDX-License-Identifier: Apache-2.0
// The driver's public functions: options, state, diagnostics. A step is in step.cpp.
#include "rode/optimizer.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "optim/optimizer_impl.h"
#include "optim/option_text.h"
#include "optim/state_values.h"
#include "rode/error.h"

namespace rode {
namespace {

constexpr std::string_view kStepKey = "rode.step";
constexpr std::string_view kOptimizerKey = "rode.optimizer";

}  // namespace

Optimizer::Optimizer(std::vector<ParameterGroup> groups, EngineOptions engine)
    : impl_(std::make_unique<Impl>(std::move(groups), std::move(engine))),
      parameters_(impl_->parameters) {}

Optimizer::Optimizer(std::vector<Parameter> parameters, Method method, Routing routing,
                     EngineOptions engine)
    : Optimizer(std::vector<ParameterGroup>{{std::move(parameters), std::move(method),
                                             std::move(routing)}},
                std::move(engine)) {}

Optimizer::~Optimizer() = default;
Optimizer::Optimizer(Optimizer&&) noexcept = default;
Optimizer& Optimizer::operator=(Optimizer&&) noexcept = default;

void Optimizer::set_stream(void* stream) {
  impl_->backend->set_stream(stream);
  impl_->engine.stream = stream;  // for the engine that a load may make
}

bool Optimizer::capturing() const { return impl_->backend->capturing(); }

void Optimizer::send_options() {
  if (capturing()) {
    throw Error(ErrorKind::invalid_argument, "send options",
                "the stream is being captured, and nothing can be sent into a graph; call it "
                "before or after the capture");
  }
  impl_->send_changed();
}

void Optimizer::set_option(std::size_t group, std::string_view key, std::string_view value) {
  Impl::Group& target = impl_->group_at(group);
  for (const OptionInfo& info : target.method.options()) {
    if (info.key == key && !info.live) {
      throw Error(ErrorKind::invalid_argument, target.method.name(),
                  fmt::format("option '{}' is fixed at construction; create a new optimizer and "
                              "load the state into it",
                              key));
    }
  }
  impl_->set_rule(target, target.method.with({{std::string(key), std::string(value)}}),
                  target.coupling);
}

void Optimizer::set_option(std::size_t group, std::string_view key, double value) {
  Impl::Group& target = impl_->group_at(group);
  std::shared_ptr<const Rule> rule = target.method.rule()->with_number(key, value);
  if (rule == nullptr) {
    set_option(group, key, fmt::format("{}", value));  // or throws with the reason
    return;
  }
  impl_->set_rule(target, Method(std::move(rule)), target.coupling);
}

bool Optimizer::set_method(std::size_t group, const Method& method) {
  Impl::Group& target = impl_->group_at(group);
  switch (target.method.rule()->difference(*method.rule())) {
    case Rule::Difference::fixed: return false;
    case Rule::Difference::live: impl_->set_rule(target, method, target.coupling); break;
    case Rule::Difference::none: break;
  }
  return true;
}

void Optimizer::set_coupling(std::size_t group, const RateCoupling& coupling) {
  Impl::Group& target = impl_->group_at(group);
  if (coupling != target.coupling) impl_->set_rule(target, target.method, coupling);
}

const Method& Optimizer::method(std::size_t group) const { return impl_->groups.at(group).method; }

std::size_t Optimizer::group_count() const { return impl_->groups.size(); }

std::int64_t Optimizer::steps_done() const {
  impl_->look();
  return impl_->steps;
}

void Optimizer::set_steps_done(std::int64_t steps) {
  if (steps < 0 || steps > kMostSteps) {
    throw Error(ErrorKind::invalid_argument, "set steps",
                fmt::format("steps = {}; expected a step count", steps));
  }
  impl_->expect(Impl::Phase::none, "set steps");
  impl_->backend->set_step(steps);
  impl_->steps = steps;
}

std::int64_t Optimizer::refused_steps() const {
  impl_->look();
  return impl_->refused_steps;
}

std::vector<TensorEntry> Optimizer::state() const {
  std::vector<TensorEntry> entries;
  for (const auto& state : impl_->states) {
    for (std::size_t i = 0; i < state->specs().size(); ++i) {
      entries.push_back({state->name(i), state->view(i)});
    }
  }
  return entries;
}

void Optimizer::save(const std::filesystem::path& path) const {
  impl_->expect(Impl::Phase::none, "save");
  write_safetensors(path, state(), metadata());
}

std::map<std::string, std::string> Optimizer::metadata() const {
  return {{std::string(kStepKey), std::to_string(steps_done())},
          {std::string(kOptimizerKey), impl_->families()}};
}

std::vector<std::string> Optimizer::skipped() const {
  impl_->look();
  std::vector<std::string> names;
  for (const Impl::Entry& entry : impl_->entries) {
    if (!entry.jobs.empty() && entry.parameter.value.numel() > 0 && !entry.jobs.front()->active) {
      names.push_back(entry.parameter.name);
    }
  }
  return names;
}

void Optimizer::load(const std::filesystem::path& path) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  load_state(file, true);
  if (!file.has_checksum() && impl_->engine.notify) impl_->engine.notify(file.checksum_note());
}

std::vector<std::string> Optimizer::load_state(const SafetensorsFile& file, bool complete) {
  impl_->expect(Impl::Phase::none, "load");
  std::int64_t steps = steps_done();  // kept if the file does not say
  const auto saved = file.metadata().find(std::string(kStepKey));
  if (saved != file.metadata().end()) {
    const std::string& text = saved->second;
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), steps);
    if (error != std::errc() || stop != text.data() + text.size() || steps < 0 ||
        steps > kMostSteps) {
      throw Error(ErrorKind::file, "load state",
                  fmt::format("metadata '{}' = '{}'; expected a step count", kStepKey, text));
    }
  }
  const bool has_state = std::ranges::any_of(
      file.names(), [](const std::string& name) { return name.starts_with("state."); });
  const auto saver = file.metadata().find(std::string(kOptimizerKey));
  if (has_state && saver != file.metadata().end() && saver->second != impl_->families()) {
    throw Error(ErrorKind::state_mismatch, "load state",
                fmt::format("the file was saved by '{}', but the optimizer here is '{}'; state of "
                            "one has a different meaning for the other, even under equal names",
                            saver->second, impl_->families()));
  }
  std::unique_ptr<Impl> other = impl_->with_starts(file);
  std::vector<const ParameterState*> states;
  for (const auto& state : (other ? other : impl_)->states) states.push_back(state.get());
  std::vector<std::string> absent = rode::load_state(file, complete, states);
  if (other) {
    impl_ = std::move(other);
    parameters_ = impl_->parameters;
  }
  impl_->tell_starts();
  impl_->backend->set_step(steps);
  impl_->steps = steps;
  return absent;
}

std::size_t Optimizer::state_bytes() const {
  std::size_t bytes = 0;
  for (const auto& state : impl_->states) bytes += spec_bytes(state->specs());
  return bytes;
}

std::size_t Optimizer::workspace_bytes() const { return impl_->backend->workspace_bytes(); }

std::vector<MatrixDiagnostics> Optimizer::Impl::matrices() const {
  std::vector<MatrixDiagnostics> out;
  std::size_t block = 0;
  const RodeJob* before = nullptr;
  for (const RodeJob& job : jobs.rode) {
    block = before != nullptr && before->parameter == job.parameter ? block + 1 : 0;
    before = &job;
    const Entry& entry = entries[job.parameter];
    const rules::RodeScalars& r = job.scalars;
    out.push_back({.name = entry.jobs.size() > 1
                               ? fmt::format("{}[{}]", entry.parameter.name, block)
                               : entry.parameter.name,
                   .rho = r.rho,
                   .rho_next = rules::written_radius(r, job.write),
                   .s = r.s,
                   .q = job.write.q,
                   .theta = job.write.theta,
                   .gamma = r.gamma,
                   .m_norm = r.m_norm});
  }
  return out;
}

std::vector<MatrixDiagnostics> Optimizer::matrix_diagnostics() const {
  impl_->look();
  return impl_->matrices();
}

GlobalDiagnostics Optimizer::global_diagnostics() const {
  impl_->look();
  return impl_->global;
}

void Optimizer::keep_history(std::size_t steps) {
  impl_->look();  // of the steps so far nothing more is to be known
  impl_->keep_history(steps);
}

void Optimizer::Impl::keep_history(std::size_t count) {
  std::vector<StepDiagnostics> places(backend->deferred() ? 0 : count);
  backend->keep_results(count);
  history = std::move(places);
  ring = Ring(history.size());
  kept_steps = count;
}

std::vector<StepDiagnostics> Optimizer::take_history() { return impl_->take_history(); }

std::vector<StepDiagnostics> Optimizer::Impl::take_history() {
  std::vector<StepDiagnostics> out;
  for (std::size_t i = 0; i < ring.size(); ++i) out.push_back(std::move(history[ring.at(i)]));
  ring.clear();
  if (!backend->deferred()) return out;
  look();
  std::vector<bool> active;
  jobs.for_each([&](const JobBase& job) { active.push_back(job.active); });
  backend->visit_kept(jobs, [&](const Fetched& then) {
    if (then.refused) return;
    forget_inactive();
    out.push_back({then.done - 1, sum_up(), matrices()});
  });
  // The jobs show the last step again: its flags as they were sent, then its results.
  std::size_t next = 0;
  jobs.for_each([&](JobBase& job) { job.active = active[next++]; });
  look();
  return out;
}

std::string Optimizer::routing_table() const {
  std::string out;
  for (const Impl::Group& group : impl_->groups) {
    std::vector<Parameter> members;
    for (std::size_t i = 0; i < group.count; ++i) {
      members.push_back(impl_->entries[group.first + i].parameter);
    }
    if (impl_->groups.size() > 1) out += fmt::format("group: {}\n", group.method.name());
    out += rode::routing_table(members, group.routed, acting(group.method, group.coupling));
  }
  return out;
}

}  // namespace rode
