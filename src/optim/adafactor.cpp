// SPDX-License-Identifier: Apache-2.0
// Adafactor's options, state and jobs.
#include "rode/optim/adafactor.h"

#include "optim/rule_support.h"

namespace rode {
namespace {

class AdafactorRule final : public TypedRule<AdafactorRule, AdafactorOptions> {
 public:
  using TypedRule::TypedRule;

  static const OptionSchema<AdafactorOptions>& schema() {
    using O = AdafactorOptions;
    static const OptionSchema<O> table([] {
      std::vector<OptionField<O>> f;
      append_rates(f, "decoupled");
      f.push_back(number("eps", &O::eps, more_than(0), "added to the squared gradient"));
      f.push_back(number("clip_threshold", &O::clip_threshold, more_than(0),
                         "largest root mean square of an update"));
      f.push_back(number("decay_rate", &O::decay_rate, less_than(0),
                         "exponent of the decay of the averages"));
      append_rates_of_rest(f, "decoupled");
      append_storage(f);
      return f;
    }());
    return table;
  }

  std::vector<StateSpec> state(const Subject& subject) const override {
    const Shape& shape = subject.parameter->value.shape;
    std::vector<StateSpec> specs;
    if (shape.rank() < 2) {
      specs.push_back({"exp_avg_sq", shape, moment_dtype(options_.storage)});
    } else {
      const std::vector<std::int64_t> dims(shape.dims().begin(), shape.dims().end());
      std::vector<std::int64_t> row(dims.begin(), dims.end() - 1);
      std::vector<std::int64_t> col(dims.begin(), dims.end() - 2);
      col.push_back(dims.back());
      specs.push_back({"row", Shape(row), DType::f32});
      specs.push_back({"col", Shape(col), DType::f32});
    }
    specs.push_back({"step", {1}, DType::i64});
    append_low_bits(specs, subject, options_.storage);
    return specs;
  }

  std::unique_ptr<RuleInstance> instantiate() const override;
};

class AdafactorInstance final : public RuleInstance {
 public:
  explicit AdafactorInstance(const AdafactorRule& rule) : storage_(rule.values().storage) {
    refresh(rule);
  }

  void refresh(const Rule& rule) override {
    const AdafactorOptions& o = static_cast<const AdafactorRule&>(rule).values();
    matrix_ = {o.lr, o.weight_decay, o.eps, o.clip_threshold, o.decay_rate};
    rest_ = matrix_;
    rest_.lr = rest_lr(o);
    rest_.weight_decay = rest_weight_decay(o);
  }

  void add_jobs(JobList& jobs, const Subject& subject, const StateSlots& state, Backend*) override {
    AdafactorJob& job = jobs.adafactor.emplace_back();
    fill_base(job, subject, storage_, state);
    job.constants = subject.treatment == Treatment::matrix ? &matrix_ : &rest_;
    job.most_gg = rules::kSquaresLimit;
    const Shape& shape = subject.parameter->value.shape;
    if (shape.rank() < 2) {
      job.planes = job.rows = 1;
      job.cols = shape.numel();
      job.exp_avg_sq = moments(state, "exp_avg_sq", subject.parameter->value.numel());
    } else {
      job.rows = shape[shape.rank() - 2];
      job.cols = shape[shape.rank() - 1];
      for (int axis = 0; axis + 2 < shape.rank(); ++axis) job.planes *= shape[axis];
      job.row = static_cast<float*>(state.find("row"));
      job.col = static_cast<float*>(state.find("col"));
    }
    job.step = static_cast<std::int64_t*>(state.find("step"));
  }

 private:
  StorageOptions storage_;
  rules::AdafactorConstants matrix_{}, rest_{};
};

std::unique_ptr<RuleInstance> AdafactorRule::instantiate() const {
  return std::make_unique<AdafactorInstance>(*this);
}

}  // namespace

std::shared_ptr<const Rule> make_rule(const AdafactorOptions& options) {
  return std::make_shared<AdafactorRule>("adafactor", options);
}

}  // namespace rode
