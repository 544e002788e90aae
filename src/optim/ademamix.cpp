// SPDX-License-Identifier: Apache-2.0
// AdEMAMix's options, state and jobs.
#include "rode/optim/ademamix.h"

#include "optim/rule_support.h"

namespace rode {
namespace {

class AdEMAMixRule final : public TypedRule<AdEMAMixRule, AdEMAMixOptions> {
 public:
  using TypedRule::TypedRule;

  static const OptionSchema<AdEMAMixOptions>& schema() {
    using O = AdEMAMixOptions;
    static const OptionSchema<O> table([] {
      std::vector<OptionField<O>> f;
      f.push_back(number("lr", &O::lr, at_least(0), "rate of the matrices"));
      f.push_back(
          number("weight_decay", &O::weight_decay, at_least(0), "decoupled decay of the matrices"));
      f.push_back(numbers("betas", &O::betas, unit_interval(),
                          "of fast momentum, second moment and slow momentum"));
      f.push_back(number("alpha", &O::alpha, at_least(0), "weight of the slow momentum"));
      f.push_back(number("eps", &O::eps, more_than(0), "added to the corrected sqrt(v)"));
      f.push_back(integer("warmup_steps", &O::warmup_steps, 0, 1000000000,
                          "of alpha and the slow average; 0: off"));
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
    const StorageOptions& storage = options_.storage;
    const Shape& shape = subject.parameter->value.shape;
    const DType dtype = moment_dtype(storage);
    std::vector<StateSpec> specs{{"exp_avg_fast", shape, dtype},
                                 {"exp_avg_slow", shape, dtype},
                                 {"exp_avg_sq", shape, dtype},
                                 {"step", {1}, DType::i64}};
    append_low_bits(specs, subject, storage);
    return specs;
  }

  std::unique_ptr<RuleInstance> instantiate() const override;
};

class AdEMAMixInstance final : public RuleInstance {
 public:
  explicit AdEMAMixInstance(const AdEMAMixRule& rule) : storage_(rule.values().storage) {
    refresh(rule);
  }

  void refresh(const Rule& rule) override {
    const AdEMAMixOptions& o = static_cast<const AdEMAMixRule&>(rule).values();
    matrix_ = {o.lr,       o.weight_decay, o.betas[0], o.betas[1],
               o.betas[2], o.alpha,        o.eps,      o.warmup_steps};
    rest_ = matrix_;
    rest_.lr = o.lr_rest;
    rest_.weight_decay = o.weight_decay_rest;
  }

  void add_jobs(JobList& jobs, const Subject& subject, const StateSlots& state, Backend&) override {
    ElementJob& job = jobs.element.emplace_back();
    fill_base(job, subject, storage_, state);
    job.constants = subject.treatment == Treatment::matrix ? &matrix_ : &rest_;
    job.count = subject.parameter->value.numel();
    job.most_gg = kSquaresLimit;
    job.state[0] = moments(state, "exp_avg_fast");
    job.state[1] = moments(state, "exp_avg_slow");
    job.state[2] = moments(state, "exp_avg_sq");
    job.step = static_cast<std::int64_t*>(state.find("step"));
  }

 private:
  StorageOptions storage_;
  rules::AdEMAMixConstants matrix_{}, rest_{};
};

std::unique_ptr<RuleInstance> AdEMAMixRule::instantiate() const {
  return std::make_unique<AdEMAMixInstance>(*this);
}

}  // namespace

std::shared_ptr<const Rule> make_rule(const AdEMAMixOptions& options) {
  return std::make_shared<AdEMAMixRule>("ademamix", options);
}

}  // namespace rode
