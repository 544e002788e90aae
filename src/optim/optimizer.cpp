// SPDX-License-Identifier: Apache-2.0
// The driver: builds jobs once, then gates and runs each step.
#include "rode/optimizer.h"

#include <charconv>
#include <cmath>
#include <set>

#include <fmt/format.h>

#include "backend/backend.h"
#include "optim/rule.h"
#include "optim/state_store.h"
#include "rode/error.h"

namespace rode {
namespace {

constexpr std::string_view kStepKey = "rode.step";

void check_value(const Parameter& p) {
  if (p.value.dtype != DType::f32 && p.value.dtype != DType::bf16) {
    throw Error(ErrorKind::dtype, "parameters",
                fmt::format("parameter '{}' is {}; weights must be F32 or BF16", p.name,
                            to_string(p.value.dtype)));
  }
  if (p.value.data == nullptr && p.value.numel() > 0) {
    throw Error(ErrorKind::invalid_argument, "parameters",
                fmt::format("parameter '{}' has no memory; its data pointer is null", p.name));
  }
}

void check_grad(const Parameter& p, const ConstTensorView& grad) {
  if (grad.data == nullptr) return;
  if (!(grad.shape == p.value.shape)) {
    throw Error(ErrorKind::shape, "gradient",
                fmt::format("gradient of '{}' has shape {}; the parameter has {}", p.name,
                            to_string(grad.shape), to_string(p.value.shape)));
  }
  if (grad.dtype != DType::f32 && grad.dtype != DType::bf16) {
    throw Error(ErrorKind::dtype, "gradient",
                fmt::format("gradient of '{}' is {}; gradients must be F32 or BF16", p.name,
                            to_string(grad.dtype)));
  }
}

}  // namespace

struct Optimizer::Impl {
  struct Group {
    Method method;
    std::unique_ptr<RuleInstance> instance;
    std::vector<RoutedParameter> routed;  // indices within the group
    std::size_t first = 0;                // index of the group's first parameter
    std::size_t count = 0;
  };
  struct Slot {  // one parameter as given
    Parameter parameter;
    std::size_t owner = 0;  // itself, or the entry it is tied to
    bool stepped = false;
    std::vector<JobBase*> jobs;
  };

  EngineOptions engine;
  std::unique_ptr<Backend> backend;
  std::vector<Slot> slots;
  std::vector<Group> groups;
  std::vector<std::unique_ptr<ParameterState>> states;
  JobList jobs;
  std::int64_t steps = 0;
  GlobalDiagnostics global;
  std::set<const JobBase*> announced;  // held matrices that were mentioned

  Impl(std::vector<ParameterGroup> given, EngineOptions options) : engine(std::move(options)) {
    if (engine.threads < 0) {
      throw Error(ErrorKind::invalid_argument, "engine",
                  fmt::format("threads = {}; expected 0 (all cores) or more", engine.threads));
    }
    const BackendOptions wanted{engine.threads, engine.batched};
    backend = engine.device == Device::cuda ? make_cuda_backend(wanted) : make_cpu_backend(wanted);
    std::vector<Parameter> all;
    for (ParameterGroup& group : given) {
      groups.push_back({group.method, nullptr, {}, all.size(), group.parameters.size()});
      for (Parameter& p : group.parameters) all.push_back(std::move(p));
    }
    check_across_groups(all);
    for (std::size_t i = 0; i < all.size(); ++i) {
      check_value(all[i]);
      check_grad(all[i], all[i].grad);
      slots.push_back({std::move(all[i]), i, false, {}});
    }
    for (std::size_t g = 0; g < groups.size(); ++g) build(groups[g], given[g].routing);
    jobs.for_each([&](JobBase& job) { slots[job.parameter].jobs.push_back(&job); });
    backend->prepare(jobs);
    for (Slot& slot : slots) bind_grad_of(slot);
  }

  // Names and memory must be distinct over all groups; tied weights stay in one of them.
  void check_across_groups(const std::vector<Parameter>& all) {
    const auto group_of = [&](std::size_t index) {
      std::size_t g = 0;
      while (index >= groups[g].first + groups[g].count) ++g;
      return g;
    };
    for (const RoutedParameter& entry : route_parameters(all, {Route::rest, {}})) {
      for (const std::size_t other : entry.tied) {
        if (group_of(entry.index) == group_of(other)) continue;
        throw Error(ErrorKind::invalid_argument, "parameters",
                    fmt::format("'{}' and '{}' are the same memory in two groups and would be "
                                "stepped twice; put it into one group",
                                all[entry.index].name, all[other].name));
      }
    }
  }

  void build(Group& group, const Routing& routing) {
    const Rule& rule = *group.method.rule();
    rule.check_device(engine.device == Device::cuda);
    std::vector<Parameter> members;
    std::vector<std::string> names;
    for (std::size_t i = 0; i < group.count; ++i) {
      members.push_back(slots[group.first + i].parameter);
      names.push_back(members.back().name);
    }
    rule.check_names(names);
    group.routed = route_parameters(members, routing);
    group.instance = rule.instantiate();
    for (const RoutedParameter& entry : group.routed) {
      const std::size_t index = group.first + entry.index;
      for (const std::size_t other : entry.tied) slots[group.first + other].owner = index;
      if (entry.treatment == Treatment::frozen) continue;
      slots[index].stepped = true;
      const Subject subject{index, &slots[index].parameter, entry.treatment};
      states.push_back(std::make_unique<ParameterState>(slots[index].parameter.name,
                                                        rule.state(subject), *backend));
      group.instance->add_jobs(jobs, subject, *states.back(), *backend);
    }
  }

  void bind_grad_of(Slot& slot) {
    const ConstTensorView& grad = slot.parameter.grad;
    for (JobBase* job : slot.jobs) {
      job->grad.dtype = grad.dtype;
      job->grad.data = grad.data == nullptr
                           ? nullptr
                           : static_cast<const std::byte*>(grad.data) +
                                 static_cast<std::size_t>(job->offset) * size_of(grad.dtype);
    }
  }

  Slot& slot_at(std::size_t index) {
    if (index >= slots.size()) {
      throw Error(ErrorKind::invalid_argument, "bind",
                  fmt::format("parameter {} of {}; indices count from 0", index, slots.size()));
    }
    return slots[slots[index].owner];
  }

  void gate_missing() {
    for (Slot& slot : slots) {
      const bool present = slot.parameter.grad.data != nullptr || slot.parameter.value.numel() == 0;
      for (JobBase* job : slot.jobs) job->active = present && slot.parameter.value.numel() > 0;
      if (present || !slot.stepped || engine.on_missing == OnBadGradient::skip) continue;
      throw Error(ErrorKind::missing_gradient, "step",
                  fmt::format("parameter '{}' has no gradient; bind one, freeze the parameter, or "
                              "set on_missing to skip",
                              slot.parameter.name));
    }
  }

  void gate_non_finite() {
    for (Slot& slot : slots) {
      bool grad = true, weight = true;
      for (const JobBase* job : slot.jobs) {
        grad = grad && job->finite;
        weight = weight && job->weight_finite;
      }
      if (grad && weight) continue;
      if (engine.on_non_finite == OnBadGradient::refuse) {
        throw Error(
            ErrorKind::non_finite, "step",
            grad ? fmt::format("the weights or the momentum of '{}' hold NaN or Inf; nothing "
                               "was changed; restore a checkpoint",
                               slot.parameter.name)
                 : fmt::format("gradient of '{}' holds NaN or Inf; nothing was changed; "
                               "lower the rate or the loss scale, or set on_non_finite "
                               "to skip",
                               slot.parameter.name));
      }
      for (JobBase* job : slot.jobs) job->active = false;
    }
  }

  void sum_up() {
    double ww = 0, gg = 0, dd = 0;
    jobs.for_each([&](const JobBase& job) {
      if (!job.active) return;
      ww += job.sums.ww;
      gg += job.sums.gg;
      dd += job.sums.dd;
    });
    global = {std::sqrt(ww), std::sqrt(dd), std::sqrt(dd) / (std::sqrt(ww) + 1e-12), std::sqrt(gg)};
  }

  void announce_held() {
    const auto announce = [&](const JobBase& job, bool held) {
      if (!held || !job.active || !announced.insert(&job).second || !engine.notify) return;
      engine.notify(fmt::format(
          "[step] parameter '{}' has norm zero, so it has no direction and is held; give it a "
          "non-zero start, or route it to the rest",
          slots[job.parameter].parameter.name));
    };
    for (const RodeJob& job : jobs.rode) announce(job, job.scalars.held);
    for (const MuonJob& job : jobs.muon) announce(job, job.held);
  }
};

Optimizer::Optimizer(std::vector<ParameterGroup> groups, EngineOptions engine)
    : impl_(std::make_unique<Impl>(std::move(groups), std::move(engine))) {}

Optimizer::Optimizer(std::vector<Parameter> parameters, Method method, Routing routing,
                     EngineOptions engine)
    : Optimizer(std::vector<ParameterGroup>{{std::move(parameters), std::move(method),
                                             std::move(routing)}},
                std::move(engine)) {}

Optimizer::~Optimizer() = default;
Optimizer::Optimizer(Optimizer&&) noexcept = default;
Optimizer& Optimizer::operator=(Optimizer&&) noexcept = default;

void Optimizer::step(double multiplier) {
  if (!std::isfinite(multiplier) || multiplier < 0) {
    throw Error(ErrorKind::invalid_argument, "step",
                fmt::format("multiplier = {}; expected a finite number, 0 or more", multiplier));
  }
  impl_->gate_missing();
  impl_->backend->measure(impl_->jobs);
  impl_->gate_non_finite();
  impl_->backend->update(impl_->jobs, {multiplier, impl_->steps});
  ++impl_->steps;
  impl_->sum_up();
  impl_->announce_held();
}

void Optimizer::bind_grad(std::size_t index, ConstTensorView grad) {
  Impl::Slot& slot = impl_->slot_at(index);
  check_grad(slot.parameter, grad);
  slot.parameter.grad = grad;
  impl_->bind_grad_of(slot);
}

void Optimizer::bind_value(std::size_t index, TensorView value) {
  Impl::Slot& slot = impl_->slot_at(index);
  Parameter& p = slot.parameter;
  if (!(value.shape == p.value.shape) || value.dtype != p.value.dtype || value.data == nullptr) {
    throw Error(ErrorKind::shape, "bind",
                fmt::format("new memory of '{}' is {} {}; it must be {} {} as before, and not null",
                            p.name, to_string(value.dtype), to_string(value.shape),
                            to_string(p.value.dtype), to_string(p.value.shape)));
  }
  p.value = value;
  for (JobBase* job : slot.jobs) {
    job->weight.data = static_cast<std::byte*>(value.data) +
                       static_cast<std::size_t>(job->offset) * size_of(value.dtype);
  }
}

void Optimizer::set_option(std::size_t group, std::string_view key, std::string_view value) {
  if (group >= impl_->groups.size()) {
    throw Error(ErrorKind::invalid_argument, "set option",
                fmt::format("group {} of {}; groups count from 0", group, impl_->groups.size()));
  }
  Impl::Group& target = impl_->groups[group];
  Method changed = target.method.with({{std::string(key), std::string(value)}});
  for (const OptionInfo& info : changed.options()) {
    if (info.key == key && !info.live) {
      throw Error(ErrorKind::invalid_argument, target.method.name(),
                  fmt::format("option '{}' is fixed at construction; make a new optimizer and "
                              "load the state into it",
                              key));
    }
  }
  target.method = std::move(changed);
  target.instance->refresh(*target.method.rule());
}

void Optimizer::set_option(std::size_t group, std::string_view key, double value) {
  set_option(group, key, fmt::format("{}", value));
}

const Method& Optimizer::method(std::size_t group) const { return impl_->groups.at(group).method; }

std::size_t Optimizer::group_count() const { return impl_->groups.size(); }

std::int64_t Optimizer::steps_done() const { return impl_->steps; }

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
  write_safetensors(
      path, state(),
      {{std::string(kStepKey), std::to_string(impl_->steps)},
       {"rode.optimizer",
        std::string(impl_->groups.empty() ? std::string_view() : impl_->groups[0].method.name())}});
}

void Optimizer::load(const std::filesystem::path& path) {
  load_state(SafetensorsFile::open(path), true);
}

std::vector<std::string> Optimizer::load_state(const SafetensorsFile& file, bool complete) {
  std::int64_t steps = 0;
  const auto saved = file.metadata().find(std::string(kStepKey));
  if (saved != file.metadata().end()) {
    const std::string& text = saved->second;
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), steps);
    if (error != std::errc() || stop != text.data() + text.size() || steps < 0) {
      throw Error(ErrorKind::file, "load state",
                  fmt::format("metadata '{}' = '{}'; expected a step count", kStepKey, text));
    }
  }
  std::vector<const ParameterState*> states;
  for (const auto& state : impl_->states) states.push_back(state.get());
  std::vector<std::string> absent = rode::load_state(file, complete, states);
  impl_->steps = steps;
  return absent;
}

std::size_t Optimizer::state_bytes() const {
  std::size_t bytes = 0;
  for (const auto& state : impl_->states) bytes += spec_bytes(state->specs());
  return bytes;
}

std::size_t Optimizer::workspace_bytes() const { return impl_->backend->workspace_bytes(); }

std::vector<MatrixDiagnostics> Optimizer::matrix_diagnostics() const {
  std::vector<MatrixDiagnostics> out;
  std::size_t block = 0;
  const RodeJob* before = nullptr;
  for (const RodeJob& job : impl_->jobs.rode) {
    block = before != nullptr && before->parameter == job.parameter ? block + 1 : 0;
    before = &job;
    const Impl::Slot& slot = impl_->slots[job.parameter];
    const rules::RodeScalars& r = job.scalars;
    out.push_back({.name = slot.jobs.size() > 1 ? fmt::format("{}[{}]", slot.parameter.name, block)
                                                : slot.parameter.name,
                   .rho = r.rho,
                   .rho_next = r.rho_next,
                   .s = r.s,
                   .q = job.write.q,
                   .theta = job.write.theta,
                   .gamma = r.gamma,
                   .m_norm = r.m_norm});
  }
  return out;
}

GlobalDiagnostics Optimizer::global_diagnostics() const { return impl_->global; }

std::string Optimizer::routing_table() const {
  std::string out;
  for (const Impl::Group& group : impl_->groups) {
    std::vector<Parameter> members;
    for (std::size_t i = 0; i < group.count; ++i) {
      members.push_back(impl_->slots[group.first + i].parameter);
    }
    if (impl_->groups.size() > 1) out += fmt::format("group: {}\n", group.method.name());
    out += rode::routing_table(members, group.routed);
  }
  return out;
}

std::size_t planned_state_bytes(std::span<const Parameter> parameters, const Method& method,
                                const Routing& routing) {
  std::size_t bytes = 0;
  for (const RoutedParameter& entry : route_parameters(parameters, routing)) {
    if (entry.treatment == Treatment::frozen) continue;
    bytes +=
        spec_bytes(method.rule()->state({entry.index, &parameters[entry.index], entry.treatment}));
  }
  return bytes;
}

}  // namespace rode
