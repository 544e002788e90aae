// SPDX-License-Identifier: Apache-2.0
// SGD's options, state and jobs.
#include "rode/optim/sgd.h"

#include "optim/rule_support.h"

namespace rode {
namespace {

class SgdRule final : public TypedRule<SgdRule, SgdOptions> {
 public:
  using TypedRule::TypedRule;

  static const OptionSchema<SgdOptions>& schema() {
    using O = SgdOptions;
    static const OptionSchema<O> table([] {
      std::vector<OptionField<O>> f;
      f.push_back(number("lr", &O::lr, at_least(0), "rate of the matrices"));
      f.push_back(number("weight_decay", &O::weight_decay, at_least(0),
                         "coupled decay of the matrices: added to the gradient"));
      f.push_back(number("momentum", &O::momentum, unit_interval(), "of the buffer"));
      f.push_back(boolean("nesterov", &O::nesterov, "step along d + momentum * B instead of B"));
      f.push_back(boolean("maximize", &O::maximize, "climb: the gradient counts negated"));
      f.push_back(number("lr_rest", &O::lr_rest, at_least(0), "rate of the rest"));
      f.push_back(number("weight_decay_rest", &O::weight_decay_rest, at_least(0),
                         "coupled decay of the rest"));
      append_storage(f);
      return f;
    }());
    return table;
  }

  std::vector<StateSpec> state(const Subject& subject) const override {
    std::vector<StateSpec> specs{
        {"momentum", subject.parameter->value.shape, moment_dtype(options_.storage)}};
    append_low_bits(specs, subject, options_.storage);
    return specs;
  }

  std::unique_ptr<RuleInstance> instantiate() const override;
};

class SgdInstance final : public RuleInstance {
 public:
  explicit SgdInstance(const SgdRule& rule) : storage_(rule.values().storage) { refresh(rule); }

  void refresh(const Rule& rule) override {
    const SgdOptions& o = static_cast<const SgdRule&>(rule).values();
    matrix_ = {o.lr, o.weight_decay, o.momentum, o.nesterov, o.maximize};
    rest_ = {o.lr_rest, o.weight_decay_rest, o.momentum, o.nesterov, o.maximize};
  }

  void add_jobs(JobList& jobs, const Subject& subject, const StateSlots& state, Backend&) override {
    ElementJob& job = jobs.element.emplace_back();
    fill_base(job, subject, storage_, state);
    job.constants = subject.treatment == Treatment::matrix ? &matrix_ : &rest_;
    job.count = subject.parameter->value.numel();
    job.state[0] = moments(state, "momentum");
  }

 private:
  StorageOptions storage_;
  rules::SgdConstants matrix_{}, rest_{};
};

std::unique_ptr<RuleInstance> SgdRule::instantiate() const {
  return std::make_unique<SgdInstance>(*this);
}

}  // namespace

std::shared_ptr<const Rule> make_rule(const SgdOptions& options) {
  return std::make_shared<SgdRule>("sgd", options);
}

}  // namespace rode
