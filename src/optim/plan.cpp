// SPDX-License-Identifier: Apache-2.0
// What an optimizer would keep and do, told from shapes alone: state, limits, matrices.
#include <algorithm>
#include <memory>
#include <string_view>
#include <utility>

#include "backend/jobs.h"
#include "optim/rule.h"
#include "optim/zero_start.h"
#include "rode/optimizer.h"
#include "rode/shard_plan.h"

namespace rode {
namespace {

// State that has types but no memory.
class NoState final : public StateSlots {
 public:
  explicit NoState(std::vector<StateSpec> specs) : specs_(std::move(specs)) {}

  void* find(std::string_view) const override { return nullptr; }
  DType dtype(std::string_view key) const override {
    const auto spec = std::ranges::find(specs_, key, &StateSpec::key);
    return spec == specs_.end() ? DType::f32 : spec->dtype;
  }
  bool kept(std::string_view) const override { return false; }

 private:
  std::vector<StateSpec> specs_;
};

// Calls f(parameter, job) with every job that a step would have, parameter by parameter.
template <class F>
void for_planned_jobs(std::span<const Parameter> parameters, const Method& method,
                      const Routing& routing, F&& f) {
  const Rule& rule = *method.rule();
  const std::unique_ptr<RuleInstance> instance = rule.instantiate();
  for (const RoutedParameter& entry : planned_routing(rule, parameters, routing)) {
    if (entry.treatment == Treatment::frozen) continue;
    const Parameter p = as_routed(parameters[entry.index], entry);
    const Subject subject{entry.index, &p, entry.treatment};
    JobList jobs;
    instance->add_jobs(jobs, subject, NoState(rule.state(subject)), nullptr);
    jobs.for_each([&](const auto& job) { f(p, job); });
  }
}

int iterations(const RodeJob& job) { return rules::iterations(*job.constants); }
int iterations(const MuonJob& job) { return rules::iterations(*job.constants); }
int iterations(const JobBase&) { return 0; }

// FLOPs of what makes a matrix's step expensive.
double step_cost(const SoapJob& job) { return rotation_flops(job); }
double step_cost(const auto& job) {
  const Geometry g = geometry_of(job);
  return newton_schulz_cost(g.rows, g.cols, iterations(job));
}

// Whether the result for an element depends on that element alone: the scale of int8 state depends
// on a whole block.
bool is_elementwise(const ElementJob& job) { return job.state[0].dtype != DType::i8; }
bool is_elementwise(const JobBase&) { return false; }

// How many matrices a batch has that a rule steps each by itself; 0: it is no such batch. Blocks of
// int8 state have their scales in one table for the whole.
std::int64_t batch_of(const Parameter& p, const Moments& state) {
  return p.experts.value_or(false) && state.dtype != DType::i8 ? p.value.shape[0] : 0;
}
std::int64_t batch_of(const Parameter& p, const RodeJob& job) { return batch_of(p, job.momentum); }
std::int64_t batch_of(const Parameter& p, const MuonJob& job) { return batch_of(p, job.momentum); }
std::int64_t batch_of(const Parameter& p, const SoapJob&) { return batch_of(p, Moments{}); }
std::int64_t batch_of(const Parameter&, const JobBase&) { return 0; }

// Parts of an element-wise rule: small enough to balance, and few enough.
constexpr std::int64_t kUnitElements = 4096;
constexpr std::int64_t kLeastDivided = 4 * kUnitElements;

}  // namespace

std::vector<PlannedState> planned_state(std::span<const Parameter> parameters, const Method& method,
                                        const Routing& routing) {
  std::vector<PlannedState> out;
  for (const RoutedParameter& entry : planned_routing(*method.rule(), parameters, routing)) {
    if (entry.treatment == Treatment::frozen) continue;
    const Parameter p = as_routed(parameters[entry.index], entry);
    for (StateSpec& spec : method.rule()->state({entry.index, &p, entry.treatment})) {
      out.push_back({p.name, std::move(spec.key), spec.shape, spec.dtype});
    }
  }
  return out;
}

std::size_t planned_state_bytes(std::span<const Parameter> parameters, const Method& method,
                                const Routing& routing) {
  std::size_t bytes = 0;
  for (const PlannedState& planned : planned_state(parameters, method, routing)) {
    bytes += static_cast<std::size_t>(planned.shape.numel()) * size_of(planned.dtype);
  }
  return bytes;
}

std::vector<PlannedGradient> planned_gradients(std::span<const Parameter> parameters,
                                               const Method& method, const Routing& routing) {
  std::vector<PlannedGradient> out;
  for_planned_jobs(parameters, method, routing, [&](const Parameter& p, const auto& job) {
    // Blocks of one parameter are alike.
    if (!out.empty() && out.back().parameter == p.name) return;
    out.push_back({p.name, is_elementwise(job), job.most_gg, batch_of(p, job)});
  });
  return out;
}

std::vector<ShardItem> shard_items(std::span<const Parameter> parameters, const Method& method,
                                   const Routing& routing) {
  method.rule()->check_share();
  std::vector<ShardItem> out;
  for_planned_jobs(parameters, method, routing, [&](const Parameter& p, const auto& job) {
    if (out.empty() || out.back().name != p.name) {
      const auto size = static_cast<std::int64_t>(size_of(p.value.dtype));
      const std::int64_t count = p.value.numel();
      const bool divided = is_elementwise(job) && count >= kLeastDivided;
      out.push_back({p.name, count * size, divided ? kUnitElements * size : 0, 0, 0});
    }
    out.back().cost += step_cost(job);
    if (const std::int64_t experts = batch_of(p, job); experts > 0) {
      out.back().unit_bytes = out.back().bytes / experts;
    }
  });
  // A share cannot check this: the matrices that a pattern means may be another process's.
  std::vector<std::string> matrices;
  for (const RoutedParameter& entry : route_parameters(parameters, routing)) {
    if (entry.treatment == Treatment::matrix) matrices.push_back(parameters[entry.index].name);
  }
  method.rule()->check_names(matrices);
  std::size_t at = 0;
  for (const PlannedState& planned : planned_state(parameters, method, routing)) {
    while (out[at].name != planned.parameter) ++at;
    out[at].state_bytes +=
        planned.shape.numel() * static_cast<std::int64_t>(size_of(planned.dtype));
  }
  return out;
}

std::vector<PlannedMatrix> planned_matrices(std::span<const Parameter> parameters,
                                            const Method& method, const Routing& routing) {
  std::vector<PlannedMatrix> out;
  for_planned_jobs(parameters, method, routing, [&](const Parameter& p, const auto& job) {
    const int count = iterations(job);
    const Geometry g = geometry_of(job);
    if (count > 0) out.push_back({p.name, g.rows, g.cols, count});
  });
  return out;
}

}  // namespace rode
