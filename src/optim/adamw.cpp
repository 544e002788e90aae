// SPDX-License-Identifier: Apache-2.0
// AdamW's options, state and jobs.
#include "rode/optim/adamw.h"

#include "optim/rule_support.h"

namespace rode {
namespace {

class AdamWRule final : public TypedRule<AdamWRule, AdamWOptions> {
 public:
  using TypedRule::TypedRule;

  static const OptionSchema<AdamWOptions>& schema() {
    using O = AdamWOptions;
    static const OptionSchema<O> table([] {
      std::vector<OptionField<O>> f;
      f.push_back(number("lr", &O::lr, at_least(0), "rate of the matrices"));
      f.push_back(
          number("weight_decay", &O::weight_decay, at_least(0), "decoupled decay of the matrices"));
      f.push_back(numbers("betas", &O::betas, unit_interval(), "of the two averages"));
      f.push_back(number("eps", &O::eps, more_than(0), "added to the corrected sqrt(v)"));
      f.push_back(boolean("maximize", &O::maximize, "climb: the gradient counts negated"));
      f.push_back(number("lr_rest", &O::lr_rest, at_least(0), "rate of the rest"));
      f.push_back(number("weight_decay_rest", &O::weight_decay_rest, at_least(0),
                         "decoupled decay of the rest"));
      append_storage(f);
      return f;
    }());
    return table;
  }

  std::string advice() const override {
    return slow_average_advice(name_, options_.storage, options_.betas);
  }

  std::vector<StateSpec> state(const Subject& subject) const override {
    return adamw_state(subject, options_.storage);
  }

  std::unique_ptr<RuleInstance> instantiate() const override;
};

class AdamWInstance final : public RuleInstance {
 public:
  explicit AdamWInstance(const AdamWRule& rule) : storage_(rule.values().storage) { refresh(rule); }

  void refresh(const Rule& rule) override {
    const AdamWOptions& o = static_cast<const AdamWRule&>(rule).values();
    const double sign = o.maximize ? -1 : 1;
    matrix_ = {o.lr, o.weight_decay, o.betas[0], o.betas[1], o.eps, sign};
    rest_ = {o.lr_rest, o.weight_decay_rest, o.betas[0], o.betas[1], o.eps, sign};
  }

  void add_jobs(JobList& jobs, const Subject& subject, const StateSlots& state, Backend&) override {
    add_adamw_job(jobs, subject, state, storage_,
                  subject.treatment == Treatment::matrix ? &matrix_ : &rest_);
  }

 private:
  StorageOptions storage_;
  rules::AdamWConstants matrix_{}, rest_{};
};

std::unique_ptr<RuleInstance> AdamWRule::instantiate() const {
  return std::make_unique<AdamWInstance>(*this);
}

}  // namespace

std::shared_ptr<const Rule> make_rule(const AdamWOptions& options) {
  return std::make_shared<AdamWRule>("adamw", options);
}

}  // namespace rode
