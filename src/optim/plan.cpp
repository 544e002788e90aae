// SPDX-License-Identifier: Apache-2.0
// What an optimizer would keep and do, told from shapes alone: state, limits, matrices.
#include <algorithm>
#include <memory>
#include <string_view>
#include <type_traits>
#include <utility>

#include "backend/jobs.h"
#include "optim/rule.h"
#include "optim/zero_start.h"
#include "rode/optimizer.h"

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
    const Parameter& p = parameters[entry.index];
    const Subject subject{entry.index, &p, entry.treatment};
    JobList jobs;
    instance->add_jobs(jobs, subject, NoState(rule.state(subject)), nullptr);
    jobs.for_each([&](const auto& job) { f(p, job); });
  }
}

int iterations(const RodeJob& job) {
  return rules::iterates(*job.constants) ? job.constants->ns_steps : 0;
}
int iterations(const MuonJob& job) { return job.constants->ns_steps; }
int iterations(const JobBase&) { return 0; }

}  // namespace

std::vector<PlannedState> planned_state(std::span<const Parameter> parameters, const Method& method,
                                        const Routing& routing) {
  std::vector<PlannedState> out;
  for (const RoutedParameter& entry : planned_routing(*method.rule(), parameters, routing)) {
    if (entry.treatment == Treatment::frozen) continue;
    const Parameter& p = parameters[entry.index];
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
  for_planned_jobs(parameters, method, routing, [&]<class Job>(const Parameter& p, const Job& job) {
    bool elementwise = false;
    if constexpr (std::is_same_v<Job, ElementJob>) {
      elementwise = job.state[0].dtype != DType::i8;  // a scale depends on a whole block
    }
    // Blocks of one parameter are alike.
    if (!out.empty() && out.back().parameter == p.name) return;
    out.push_back({p.name, elementwise, job.most_gg});
  });
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
