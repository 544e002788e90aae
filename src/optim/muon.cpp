// SPDX-License-Identifier: Apache-2.0
// Muon's options, state and jobs.
#include "rode/optim/muon.h"

#include <fmt/format.h>

#include "optim/element_optimizer.h"
#include "optim/rule_support.h"
#include "rode/error.h"

namespace rode {
namespace {

class MuonRule final : public TypedRule<MuonRule, MuonOptions> {
 public:
  using TypedRule::TypedRule;

  static const OptionSchema<MuonOptions>& schema() {
    using O = MuonOptions;
    static const OptionSchema<O> table([] {
      std::vector<OptionField<O>> f;
      f.push_back(number("lr", &O::lr, at_least(0), "rate of the matrices"));
      f.push_back(number("weight_decay", &O::weight_decay, at_least(0),
                         "decoupled decay of the matrices, by the unscaled rate"));
      f.push_back(number("momentum", &O::momentum, unit_interval(),
                         "weight of the old buffer in the averaged gradient"));
      f.push_back(boolean("nesterov", &O::nesterov, "look-ahead"));
      append_newton_schulz(f);
      append_normalize(f);
      f.push_back(
          number("eps", &O::eps, at_least(0), "smallest norm by which the momentum is divided"));
      f.push_back(choice("scale", &O::scale, {"original", "rms"},
                         "sqrt(max(1, m/n)), or 0.2 sqrt(max(m, n))"));
      f.push_back(choice("constraint", &O::constraint, {"none", "normproj", "hyperball"},
                         "norm of each matrix: free, projected to its initial value, or MuonH"));
      f.push_back(text("splits", &O::splits,
                       "blocks of fused matrices along fan-out; PATTERN=3 or PATTERN=a+b+c"));
      append_rest(f);
      append_storage(f, true);
      return f;
    }());
    return table;
  }

  static void complete(MuonOptions& o, const MuonOptions&, const Settings&) {
    complete_newton_schulz(o);
  }

  static void cross_check(std::string_view name, const MuonOptions& o) {
    check_ns_steps(name, o.coefficients, ns_steps_of(o));
    if (o.constraint == MuonConstraint::hyperball && o.weight_decay != 0) {
      throw Error(ErrorKind::invalid_argument, name,
                  fmt::format("option 'weight_decay' = {} with constraint=hyperball, which keeps "
                              "the norm fixed and has no decay; set weight_decay=0",
                              o.weight_decay));
    }
    Splits(name, o.splits);
  }

  void check_engine(const EngineOptions& engine) const override {
    check_newton_schulz(name_, {options_.coefficients, options_.ns_form, options_.ns_dtype},
                        engine);
    check_state_dtype(name_, options_.storage, engine);
  }

  void check_names(const std::vector<std::string>& names) const override {
    check_split_names(name_, options_.splits, names);
  }

  std::vector<Block> blocks(const Subject& subject) const {
    return matrix_blocks(name_, options_.splits, subject);
  }

  std::vector<StateSpec> state(const Subject& subject) const override {
    const MuonOptions& o = options_;
    if (subject.treatment == Treatment::rest)
      return element_state<rules::AdamW>(subject, o.storage);
    const std::vector<Block> parts = blocks(subject);
    const auto count = static_cast<std::int64_t>(parts.size());
    check_scale_blocks(name_, subject, parts, o.storage);
    std::vector<StateSpec> specs;
    append_momentum(specs, "momentum", subject, o.storage);
    if (o.constraint != MuonConstraint::none) specs.push_back({"radius", {count}, DType::f32});
    append_row_averages(specs, name_, subject, o.normalize);
    append_low_bits(specs, subject, o.storage);
    return specs;
  }

  std::unique_ptr<RuleInstance> instantiate() const override;
};

class MuonInstance final : public RuleInstance {
 public:
  explicit MuonInstance(const MuonRule& rule) : rule_(rule) { refresh(rule); }

  void refresh(const Rule& rule) override {
    const MuonOptions& o = static_cast<const MuonRule&>(rule).values();
    matrix_ = {o.lr,           o.weight_decay, o.momentum, o.eps,     o.nesterov,
               o.scale,        o.constraint,   false,      0,         ns_steps_of(o),
               o.coefficients, o.ns_dtype,     o.ns_form,  o.row_beta};
    rest_ = rest_constants(o);
  }

  void add_jobs(JobList& jobs, const Subject& subject, const StateSlots& state,
                Backend* backend) override {
    const StorageOptions& storage = rule_.values().storage;
    if (subject.treatment == Treatment::rest) {
      add_element_job<rules::AdamW>(jobs, subject, state, storage, rest_);
      return;
    }
    auto* radius = static_cast<float*>(state.find("radius"));
    for (const Block& block : rule_.blocks(subject)) {
      MuonJob& job = jobs.muon.emplace_back();
      fill_base(job, subject, storage, state, block.offset);
      job.constants = &matrix_;
      job.geometry = block.geometry;
      job.momentum = moments(state, "momentum", block.geometry.stride, block.offset);
      job.rows = row_averages(state, block);
      job.scale = rules::muon_scale(matrix_, static_cast<double>(block.fan_out),
                                    static_cast<double>(block.fan_in));
      if (radius != nullptr) {
        job.radius = radius++;
        if (!state.kept("radius")) backend->store_norm(job.weight, job.geometry, job.radius);
      }
    }
  }

 private:
  MuonRule rule_;
  rules::MuonConstants matrix_{};
  rules::AdamW::Constants rest_{};
};

std::unique_ptr<RuleInstance> MuonRule::instantiate() const {
  return std::make_unique<MuonInstance>(*this);
}

}  // namespace

std::shared_ptr<const Rule> make_rule(const MuonOptions& options) {
  return std::make_shared<MuonRule>(std::string(name_of(options, MuonRule::schema())), options);
}

}  // namespace rode
