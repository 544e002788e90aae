// SPDX-License-Identifier: Apache-2.0
// MARS-M's options, state and jobs.
#include "rode/optim/mars_m.h"

#include "optim/element_optimizer.h"
#include "optim/rule_support.h"

namespace rode {
namespace {

class MarsMRule final : public TypedRule<MarsMRule, MarsMOptions> {
 public:
  using TypedRule::TypedRule;

  static const OptionSchema<MarsMOptions>& schema() {
    using O = MarsMOptions;
    static const OptionSchema<O> table([] {
      std::vector<OptionField<O>> f;
      f.push_back(number("lr", &O::lr, at_least(0), "rate of the matrices"));
      f.push_back(number("weight_decay", &O::weight_decay, at_least(0),
                         "decoupled decay of the matrices, by the unscaled rate"));
      f.push_back(number("momentum", &O::momentum, unit_interval(), "of the corrected gradient"));
      f.push_back(number("gamma", &O::gamma, at_least(0), "strength of variance reduction"));
      append_newton_schulz(f);
      append_normalize(f);
      f.push_back(number("eps", &O::eps, at_least(0), "added to the norm before dividing"));
      append_rest(f);
      append_storage(f, true);
      return f;
    }());
    return table;
  }

  static void complete(MarsMOptions& o, const MarsMOptions&, const Settings&) {
    complete_newton_schulz(o);
  }

  static void cross_check(std::string_view name, const MarsMOptions& o) {
    check_ns_steps(name, o.coefficients, ns_steps_of(o));
  }

  void check_engine(const EngineOptions& engine) const override {
    check_newton_schulz(name_, {options_.coefficients, options_.ns_form, options_.ns_dtype},
                        engine);
    check_state_dtype(name_, options_.storage, engine);
  }

  std::vector<StateSpec> state(const Subject& subject) const override {
    const StorageOptions& storage = options_.storage;
    if (subject.treatment == Treatment::rest) return element_state<rules::AdamW>(subject, storage);
    const Shape& shape = subject.parameter->value.shape;
    std::vector<StateSpec> specs;
    append_momentum(specs, "momentum", subject, storage);
    specs.push_back({"previous_grad", shape, moment_dtype(storage)});
    append_row_averages(specs, name_, subject, options_.normalize);
    append_low_bits(specs, subject, storage);
    return specs;
  }

  std::unique_ptr<RuleInstance> instantiate() const override;
};

class MarsMInstance final : public RuleInstance {
 public:
  explicit MarsMInstance(const MarsMRule& rule) : rule_(rule) { refresh(rule); }

  void refresh(const Rule& rule) override {
    const MarsMOptions& o = static_cast<const MarsMRule&>(rule).values();
    matrix_ = {o.lr,           o.weight_decay,       o.momentum, o.eps,     false,
               MuonScale::rms, MuonConstraint::none, true,       o.gamma,   ns_steps_of(o),
               o.coefficients, o.ns_dtype,           o.ns_form,  o.row_beta};
    rest_ = rest_constants(o);
  }

  void add_jobs(JobList& jobs, const Subject& subject, const StateSlots& state, Backend*) override {
    const StorageOptions& storage = rule_.values().storage;
    if (subject.treatment == Treatment::rest) {
      add_element_job<rules::AdamW>(jobs, subject, state, storage, rest_);
      return;
    }
    const Block whole = matrix_blocks(rule_.name(), "", subject).front();
    MuonJob& job = jobs.muon.emplace_back();
    fill_base(job, subject, storage, state);
    job.constants = &matrix_;
    job.geometry = whole.geometry;
    job.momentum = moments(state, "momentum", whole.geometry.stride);
    job.previous = moments(state, "previous_grad", whole.geometry.stride);
    job.rows = row_averages(state, whole);
    job.scale = rules::muon_scale(matrix_, static_cast<double>(whole.fan_out),
                                  static_cast<double>(whole.fan_in));
  }

 private:
  MarsMRule rule_;
  rules::MuonConstants matrix_{};
  rules::AdamW::Constants rest_{};
};

std::unique_ptr<RuleInstance> MarsMRule::instantiate() const {
  return std::make_unique<MarsMInstance>(*this);
}

}  // namespace

std::shared_ptr<const Rule> make_rule(const MarsMOptions& options) {
  return std::make_shared<MarsMRule>("mars-m", options);
}

}  // namespace rode
