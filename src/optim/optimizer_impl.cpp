// SPDX-License-Identifier: Apache-2.0
// Builds an optimizer's jobs once, and sets the rules that they follow.
#include "optim/optimizer_impl.h"

#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "optim/rule_support.h"
#include "optim/zero_start.h"
#include "rode/error.h"

namespace rode {
namespace {

void check_value(const Parameter& p) {
  if (p.value.dtype != DType::f32 && p.value.dtype != DType::bf16) {
    throw Error(ErrorKind::dtype, "parameters",
                fmt::format("parameter '{}' is {}; expected F32 or BF16", p.name,
                            to_string(p.value.dtype)));
  }
  if (p.value.data == nullptr && p.value.numel() > 0) {
    throw Error(ErrorKind::invalid_argument, "parameters",
                fmt::format("parameter '{}' has no memory; its data pointer is null", p.name));
  }
}

}  // namespace

Method acting(const Method& method, const RateCoupling& coupling) {
  std::shared_ptr<const Rule> rule = method.rule();
  const double from = coupling.from.value_or(0);
  const std::optional<double> lr = rule->live_number("lr");
  if (from == 0 || !lr || *lr == from) return method;
  const double factor = *lr / from;
  for (const std::string_view key : {"lr_rho", "lr_rest"}) {
    if (key == "lr_rho" && !coupling.lr_rho) continue;
    if (key == "lr_rest" && !rule->is_set(key)) continue;  // it follows lr by itself
    if (const auto rate = rule->live_number(key)) rule = rule->with_number(key, *rate * factor);
  }
  return Method(std::move(rule));
}

Optimizer::Impl::Impl(std::vector<ParameterGroup> given, EngineOptions options)
    : engine(std::move(options)) {
  if (engine.threads < 0) {
    throw Error(ErrorKind::invalid_argument, "engine",
                fmt::format("threads = {}; expected 0 (all cores) or more", engine.threads));
  }
  const BackendOptions wanted{engine.threads, engine.batched, engine.stream, engine.cuda_products,
                              engine.phases};
  backend = engine.device == Device::cuda ? make_cuda_backend(wanted) : make_cpu_backend(wanted);
  for (ParameterGroup& group : given) {
    groups.push_back({group.method,
                      group.coupling,
                      nullptr,
                      {},
                      parameters.size(),
                      group.parameters.size(),
                      group.routing});
    for (Parameter& p : group.parameters) parameters.push_back(std::move(p));
  }
  for (const Parameter& p : parameters) {
    check_value(p);
    check_grad(p, p.grad);
  }
  check_across_groups();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    entries.push_back({parameters[i], i, false, {}, {}});
  }
  for (Group& group : groups) build(group);
  jobs.for_each([&](JobBase& job) { entries[job.parameter].jobs.push_back(&job); });
  store_start_norms();
  tell_starts();
  backend->prepare(jobs);
  for (Entry& entry : entries) point_at_grad(entry);
  callers_state = engine.state_memory != nullptr;
  engine.state_memory = {};  // its captures may keep this optimizer alive
}

// Names and memory must be distinct over all parameter groups; tied weights stay in one of them.
void Optimizer::Impl::check_across_groups() const {
  const auto group_of = [&](std::size_t index) {
    std::size_t g = 0;
    while (index >= groups[g].first + groups[g].count) ++g;
    return g;
  };
  for (const RoutedParameter& entry : route_parameters(parameters, {Route::rest, {}})) {
    for (const std::size_t other : entry.tied) {
      if (group_of(entry.index) == group_of(other)) continue;
      throw Error(ErrorKind::invalid_argument, "parameters",
                  fmt::format("'{}' and '{}' share memory in two parameter groups and would be "
                              "updated twice; put it into one group",
                              parameters[entry.index].name, parameters[other].name));
    }
  }
}

std::string Optimizer::Impl::families() const {
  std::vector<std::string_view> names;
  for (const Group& group : groups) names.push_back(group.method.family());
  return fmt::format("{}", fmt::join(names, ","));
}

void Optimizer::Impl::build(Group& group) {
  const Rule& rule = *group.method.rule();
  rule.check_engine(engine);
  if (engine.share) rule.check_share();
  if (const std::string advice = rule.advice(); !advice.empty() && engine.notify) {
    engine.notify(advice);
  }
  std::vector<Parameter> members;
  for (std::size_t i = 0; i < group.count; ++i) {
    members.push_back(entries[group.first + i].parameter);
  }
  group.routed = route_parameters(members, group.routing);
  std::vector<std::string> names;
  for (const RoutedParameter& entry : group.routed) {
    parameters[group.first + entry.index].experts = entry.experts;
    if (entry.treatment == Treatment::matrix) names.push_back(members[entry.index].name);
  }
  if (!engine.share) rule.check_names(names);
  find_zero_starts(group);
  for (std::size_t i = 0; i < group.count; ++i) {
    members[i].zero_start = entries[group.first + i].parameter.zero_start;
  }
  rest_zero_starts(rule, members, group.routed);
  group.instance = rule.instantiate();
  set_rule(group, group.method, group.coupling);
  for (const RoutedParameter& entry : group.routed) {
    const std::size_t index = group.first + entry.index;
    for (const std::size_t other : entry.tied) tie(index, group.first + other);
    if (entry.treatment == Treatment::frozen) continue;
    entries[index].stepped = true;
    const Subject subject{index, &entries[index].parameter, entry.treatment};
    states.push_back(std::make_unique<ParameterState>(
        entries[index].parameter.name, rule.state(subject), *backend, engine.state_memory));
    group.instance->add_jobs(jobs, subject, *states.back(), backend.get());
  }
}

void Optimizer::Impl::find_zero_starts(const Group& group) {
  const std::optional<double> most = group.method.rule()->zero_norm();
  if (!most) return;
  for (const RoutedParameter& entry : group.routed) {
    Parameter& p = entries[group.first + entry.index].parameter;
    if (entry.treatment != Treatment::matrix || p.zero_start || p.value.numel() == 0) continue;
    const Weights weights{.data = p.value.data, .dtype = p.value.dtype};
    p.zero_start = std::sqrt(backend->squared_norm(weights, stored_matrix(p))) <= *most;
  }
}

std::unique_ptr<Optimizer::Impl> Optimizer::Impl::with_starts(const SafetensorsFile& file) const {
  std::vector<ParameterGroup> given;
  bool differs = false;
  for (const Group& group : groups) {
    ParameterGroup& copy =
        given.emplace_back(ParameterGroup{{}, group.method, group.routing, group.coupling});
    for (std::size_t i = 0; i < group.count; ++i) {
      Parameter& p = copy.parameters.emplace_back(parameters[group.first + i]);
      if (!p.zero_start) continue;  // no matrix, or the rule does not ask
      const std::optional<bool> saved = zero_start_in(file, p.name);
      if (!saved || *saved == *p.zero_start) continue;
      if (*saved && engine.notify) {
        engine.notify(
            fmt::format("'{}': the file has the state of the rest's rule for this matrix; it is "
                        "stepped by that rule from now on",
                        p.name));
      }
      p.zero_start = saved;
      differs = true;
    }
  }
  if (!differs) return nullptr;
  if (callers_state) {
    throw Error(ErrorKind::state_mismatch, "load state",
                "the file records other matrices as zero at construction, but the state here is in "
                "memory that the caller owns; set Parameter::zero_start and make a new optimizer");
  }
  EngineOptions quiet = engine;
  quiet.notify = {};  // it has been said
  auto made = std::make_unique<Impl>(std::move(given), std::move(quiet));
  made->engine.notify = engine.notify;
  if (kept_steps > 0) made->keep_history(kept_steps);
  return made;
}

// One weight has one gradient: from any of its entries, but not two different ones.
void Optimizer::Impl::tie(std::size_t owner, std::size_t other) {
  entries[other].owner = owner;
  entries[owner].tied.push_back(other);
  ConstTensorView& grad = entries[owner].parameter.grad;
  const ConstTensorView& further = entries[other].parameter.grad;
  if (further.data == nullptr) return;
  if (grad.data != nullptr && (grad.data != further.data || grad.dtype != further.dtype)) {
    throw Error(ErrorKind::invalid_argument, "parameters",
                fmt::format("'{}' and '{}' are tied but have two gradients; add them and pass "
                            "one",
                            entries[owner].parameter.name, entries[other].parameter.name));
  }
  grad = further;
}

Optimizer::Impl::Group& Optimizer::Impl::group_at(std::size_t index) {
  if (index >= groups.size()) {
    throw Error(ErrorKind::invalid_argument, "set option",
                fmt::format("group index {}; expected {}", index, valid_indices(groups.size())));
  }
  return groups[index];
}

void Optimizer::Impl::set_rule(Group& group, Method method, const RateCoupling& coupling) {
  expect(Phase::none, "set option");
  group.instance->refresh(*acting(method, coupling).rule());
  group.method = std::move(method);
  group.coupling = coupling;
  changed = true;
}

}  // namespace rode
