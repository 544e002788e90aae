// SPDX-License-Identifier: Apache-2.0
// The scalars of a matrix that lies in parts, from the jobs that a rule makes for the whole.
#include "rode/matrix_parts.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

#include <fmt/format.h>

#include "backend/jobs.h"
#include "optim/optimizer_impl.h"
#include "optim/rule.h"
#include "optim/zero_start.h"
#include "rode/error.h"
#include "rules/gate.h"
#include "rules/newton_schulz_rule.h"

namespace rode {
namespace {

// State of which the entries with one element have memory.
class ScalarSlots final : public StateSlots {
 public:
  ScalarSlots(std::vector<StateSpec> specs, const PartScalars& values) : specs_(std::move(specs)) {
    for (const StateSpec& spec : specs_) {
      if (spec.shape.numel() != 1) continue;
      const auto given = values.find(spec.key);
      const double value = given == values.end() ? 0 : given->second;
      if (spec.dtype == DType::i64) {
        counts_[spec.key] = static_cast<std::int64_t>(value);
      } else {
        numbers_[spec.key] = static_cast<float>(value);
      }
    }
  }

  void* find(std::string_view key) const override {
    const std::string name(key);
    if (const auto count = counts_.find(name); count != counts_.end()) return &count->second;
    const auto number = numbers_.find(name);
    return number == numbers_.end() ? nullptr : &number->second;
  }
  DType dtype(std::string_view key) const override {
    const auto spec = std::ranges::find(specs_, key, &StateSpec::key);
    return spec == specs_.end() ? DType::f32 : spec->dtype;
  }
  bool kept(std::string_view) const override { return true; }  // nothing is measured here

  PartScalars values() const {
    PartScalars out;
    for (const auto& [key, value] : counts_) out[key] = static_cast<double>(value);
    for (const auto& [key, value] : numbers_) out[key] = static_cast<double>(value);
    return out;
  }

 private:
  std::vector<StateSpec> specs_;
  // A job advances its state.
  mutable std::map<std::string, float> numbers_;
  mutable std::map<std::string, std::int64_t> counts_;
};

rules::MatrixProducts as_products(const PartSums& s) {
  return {s.tt, s.bt, s.gt, s.bb, s.bg, s.gg};
}

// The one matrix that a parameter's jobs are; nothing: they are something else.
using MatrixJob = std::variant<std::monostate, const RodeJob*, const MuonJob*>;
MatrixJob only_matrix(const JobList& jobs) {
  if (!jobs.soap.empty() || !jobs.adafactor.empty() || !jobs.element.empty()) return {};
  if (jobs.rode.size() == 1 && jobs.muon.empty()) return &jobs.rode.front();
  if (jobs.muon.size() == 1 && jobs.rode.empty()) return &jobs.muon.front();
  return {};
}

// Calls f(parameter, specs, instance, subject) for every parameter that is stepped.
template <class F>
void for_subjects(const ParameterGroup& group, F&& f) {
  const Method method = acting(group.method, group.coupling);
  const Rule& rule = *method.rule();
  rule.check_share();
  const std::unique_ptr<RuleInstance> instance = rule.instantiate();
  for (const RoutedParameter& entry : planned_routing(rule, group.parameters, group.routing)) {
    if (entry.treatment == Treatment::frozen) continue;
    const Parameter p = as_routed(group.parameters[entry.index], entry);
    const Subject subject{entry.index, &p, entry.treatment};
    f(p, rule.state(subject), *instance, subject);
  }
}

// Which rule, and whether sums over the parts are all that it needs.
bool takes_parts(const RodeJob& job) {
  return rules::iterates(*job.constants) && job.constants->radius_scope == RadiusScope::matrix;
}
bool takes_parts(const MuonJob& job) {
  return !rules::constrained(*job.constants) && !job.constants->muown.on;
}

bool knows_state(const std::vector<StateSpec>& specs) {
  constexpr std::array<std::string_view, 7> keys{
      "momentum", "previous_grad", "snr_norm", "radius", "radius_avg", "radius_avg_sq", "step"};
  return std::ranges::all_of(specs, [&](const StateSpec& spec) {
    return std::ranges::find(keys, spec.key) != keys.end() && spec.dtype != DType::i8;
  });
}

std::string text_of(const Method& method, std::string_view key) {
  for (const OptionInfo& option : method.options()) {
    if (option.key == key) return option.value;
  }
  return {};
}

Settings conditioner_of(const Method& method, int iterations) {
  return {{"ns_steps", std::to_string(iterations)},
          {"coefficients", text_of(method, "coefficients")},
          {"ns_form", text_of(method, "ns_form")},
          {"ns_dtype", "bf16"},
          {"momentum", "0"},  // the start is B' itself
          {"nesterov", "false"},
          {"rounding", "nearest"},
          {"state_dtype", "bf16"}};
}

// Muon on weights that are the start: W' = (1 - lr weight_decay) W - lr X = -X. `eps`: a start that
// is shorter stays so.
void condition(PartedMatrix& out, const Method& method, int iterations, std::string_view eps) {
  out.conditioner = "muon";
  out.settings = conditioner_of(method, iterations);
  const Settings own{{"lr", "1"}, {"weight_decay", "1"}, {"eps", std::string(eps)}};
  out.settings.insert(out.settings.end(), own.begin(), own.end());
}

void condition(PartedMatrix& out, const Method& method, const RodeJob& job) {
  const rules::RodeConstants& c = *job.constants;
  if (c.reproject == Reproject::final) {
    condition(out, method, c.ns_steps, "0");  // RODE's start has norm 1 by definition
    return;
  }
  // A step so long that nothing of W is left: W' = -rho D.
  out.weight = true;
  out.conditioner = "rode";
  out.settings = conditioner_of(method, c.ns_steps);
  const Settings own{{"lr", "1e30"},
                     {"lr_rho", "0"},
                     {"radius", "learned"},
                     {"scale", "kernel"},
                     {"direction", "retraction"},
                     {"on_zero", "hold"},
                     {"snr", "false"},
                     {"reproject", text_of(method, "reproject")}};
  out.settings.insert(out.settings.end(), own.begin(), own.end());
}
void condition(PartedMatrix& out, const Method& method, const MuonJob& job) {
  out.previous = job.constants->mars;
  condition(out, method, job.constants->ns_steps, "1");
}

PartForm form(const RodeJob& job, const rules::MatrixProducts& sums) {
  const rules::RodeConstants& c = *job.constants;
  const rules::RodeScalars r = rules::rode_scalars(c, 1.0, job.target, sums, job.state);
  return {.direction = r.direction,
          .buffer_b = c.momentum,
          .buffer_g = 1,
          .buffer_t = r.buffer_w,
          .start_b = r.start_b,
          .start_g = r.start_g,
          .start_t = r.start_w,
          .scalars = {}};
}
PartForm form(const MuonJob& job, const rules::MatrixProducts& sums) {
  const rules::MuonScalars r = rules::muon_scalars(*job.constants, sums);
  return {.direction = r.direction,
          .buffer_b = r.buffer_b,
          .buffer_g = r.buffer_g,
          .buffer_t = r.buffer_p,
          .start_b = r.start_b,
          .start_g = r.start_g,
          .scalars = {}};
}

struct Written {
  rules::MatrixWrite write;
  MatrixDiagnostics diagnostics;
};

// The iterate as a rule takes it; t = <X,U>, where Muon's U is W itself.
rules::KnownIterate iterate_of(const DirectionSums& y, bool direction, double norm) {
  return {
      direction && y.factor != 0, {y.factor * y.yw / norm, y.factor * y.factor * y.yy}, nullptr};
}
Written write(const RodeJob& job, const rules::MatrixProducts& sums, const DirectionSums& y) {
  const rules::RodeConstants& c = *job.constants;
  const rules::RodeScalars r = rules::rode_scalars(c, 1.0, job.target, sums, job.state);
  const auto known = iterate_of(y, r.direction, r.rho);
  const auto out = rules::write_back(c, 1.0, job.scale, r, known);
  return {out,
          {{}, r.rho, rules::written_radius(r, out), r.s, out.q, out.theta, r.gamma, r.m_norm}};
}
Written write(const MuonJob& job, const rules::MatrixProducts& sums, const DirectionSums& y) {
  const rules::MuonScalars r = rules::muon_scalars(*job.constants, sums);
  const auto known = iterate_of(y, r.direction, 1);
  return {rules::write_back(*job.constants, 1.0, job.scale, y.ww, 0, known), {}};
}

// Calls f(index, parameter, job, its scalar state) with the matrix of every parameter.
template <class F>
void for_matrices(const ParameterGroup& group, std::span<const PartInput> inputs, F&& f) {
  if (group.parameters.size() != inputs.size()) {
    throw Error(ErrorKind::invalid_argument, "matrix parts",
                fmt::format("{} parameters with {} inputs; give one for each",
                            group.parameters.size(), inputs.size()));
  }
  for_subjects(group, [&](const Parameter& p, std::vector<StateSpec> specs, RuleInstance& instance,
                          const Subject& subject) {
    const ScalarSlots state(std::move(specs), inputs[subject.index].scalars);
    JobList jobs;
    instance.add_jobs(jobs, subject, state, nullptr);
    std::visit(
        [&]<class Job>(const Job& job) {
          if constexpr (std::is_same_v<Job, std::monostate>) {
            throw Error(ErrorKind::unsupported, "matrix parts",
                        fmt::format("parameter '{}' is not stepped as one matrix; see "
                                    "parted_matrices",
                                    p.name));
          } else {
            f(subject.index, p, *job, state);
          }
        },
        only_matrix(jobs));
  });
}

}  // namespace

std::vector<PartedMatrix> parted_matrices(const ParameterGroup& group, Device device) {
  std::vector<PartedMatrix> out;
  for_subjects(group, [&](const Parameter& p, std::vector<StateSpec> specs, RuleInstance& instance,
                          const Subject& subject) {
    if (p.experts.value_or(false) || !knows_state(specs)) return;
    const ScalarSlots state(std::move(specs), {});
    JobList jobs;
    instance.add_jobs(jobs, subject, state, nullptr);
    std::visit(
        [&]<class Job>(const Job& job) {
          if constexpr (!std::is_same_v<Job, std::monostate>) {
            const Geometry& g = job->geometry;
            const NsDType products =
                rules::products_dtype(job->constants->ns_dtype, device == Device::cuda,
                                      rules::iterations(*job->constants), std::min(g.rows, g.cols));
            if (!takes_parts(*job) || products != NsDType::bf16) return;
            PartedMatrix& matrix = out.emplace_back();
            matrix.parameter = p.name;
            matrix.rows = g.rows;
            matrix.columns = g.cols;
            condition(matrix, group.method, *job);
          }
        },
        only_matrix(jobs));
  });
  return out;
}

std::vector<PartForm> form_parts(const ParameterGroup& group, std::span<const PartInput> inputs) {
  std::vector<PartForm> out;
  for_matrices(group, inputs,
               [&](std::size_t at, const Parameter&, const auto& job, const ScalarSlots& state) {
                 const rules::MatrixProducts sums = as_products(inputs[at].sums);
                 PartForm& formed = out.emplace_back(form(job, sums));
                 formed.good_weight = rules::judge(sums, job.most_gg).weight_finite;
                 formed.scalars = state.values();
               });
  return out;
}

std::vector<PartWrite> write_parts(const ParameterGroup& group, std::span<const PartInput> inputs,
                                   std::span<const DirectionSums> directions) {
  std::vector<PartWrite> out;
  for_matrices(
      group, inputs, [&](std::size_t at, const Parameter& p, const auto& job, const ScalarSlots&) {
        const DirectionSums& y = directions[at];
        Written written = write(job, as_products(inputs[at].sums), y);
        written.diagnostics.name = p.name;
        const rules::MatrixWrite& c = written.write;
        // No element of W' is larger.
        const double bound =
            std::abs(c.w) * std::sqrt(y.ww) + std::abs(c.x * y.factor) * std::sqrt(y.yy);
        out.push_back({bound <= rules::kWeightLimit, c.w, c.x * y.factor, written.diagnostics});
      });
  return out;
}

}  // namespace rode
