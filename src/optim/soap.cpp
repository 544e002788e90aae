// SPDX-License-Identifier: Apache-2.0
// SOAP's options, state and jobs.
#include "rode/optim/soap.h"

#include <fmt/format.h>

#include "optim/element_optimizer.h"
#include "optim/rule_support.h"
#include "rode/error.h"

namespace rode {
namespace {

class SoapRule final : public TypedRule<SoapRule, SoapOptions> {
 public:
  using TypedRule::TypedRule;

  static const OptionSchema<SoapOptions>& schema() {
    using O = SoapOptions;
    static const OptionSchema<O> table([] {
      std::vector<OptionField<O>> f;
      f.push_back(number("lr", &O::lr, at_least(0), "rate of the matrices"));
      f.push_back(number("weight_decay", &O::weight_decay, at_least(0),
                         "decoupled decay, after the update"));
      f.push_back(numbers("betas", &O::betas, unit_interval(),
                          "of Adam in the rotated basis; the second also of the factors"));
      f.push_back(number("eps", &O::eps, more_than(0), "added to sqrt(v), which is uncorrected"));
      f.push_back(integer("precondition_frequency", &O::precondition_frequency, 1, 1000000,
                          "steps between two changes of basis"));
      f.push_back(integer("max_precond_dim", &O::max_precond_dim, 1, 1000000,
                          "a longer side keeps the identity basis"));
      append_rest(f);
      append_storage(f);
      return f;
    }());
    return table;
  }

  static void cross_check(std::string_view name, const SoapOptions& o) {
    if (o.storage.state_dtype == StateDType::bf16) {
      throw Error(ErrorKind::unsupported, name,
                  "option 'state_dtype' = 'bf16'; SOAP's factors and bases need fp32; leave "
                  "state_dtype=fp32");
    }
  }

  std::vector<StateSpec> state(const Subject& subject) const override {
    const StorageOptions& storage = options_.storage;
    if (subject.treatment == Treatment::rest) return element_state<rules::AdamW>(subject, storage);
    matrix_shape(name_, subject);  // checks the rank
    const Shape& shape = subject.parameter->value.shape;
    std::vector<StateSpec> specs{{"exp_avg", shape, DType::f32}, {"exp_avg_sq", shape, DType::f32}};
    for (int mode = 0; mode < shape.rank(); ++mode) {
      const std::int64_t extent = shape[mode];
      if (extent > options_.max_precond_dim) continue;
      specs.push_back({fmt::format("gram.{}", mode), {extent, extent}, DType::f32});
      specs.push_back({fmt::format("basis.{}", mode), {extent, extent}, DType::f32});
    }
    specs.push_back({"step", {1}, DType::i64});
    append_low_bits(specs, subject, storage);
    return specs;
  }

  std::unique_ptr<RuleInstance> instantiate() const override;
};

class SoapInstance final : public RuleInstance {
 public:
  explicit SoapInstance(const SoapRule& rule) : rule_(rule) { refresh(rule); }

  void refresh(const Rule& rule) override {
    const SoapOptions& o = static_cast<const SoapRule&>(rule).values();
    matrix_ = {o.lr,  o.weight_decay,           o.betas[0],       o.betas[1],
               o.eps, o.precondition_frequency, o.max_precond_dim};
    rest_ = rest_constants(o);
  }

  void add_jobs(JobList& jobs, const Subject& subject, const StateSlots& state, Backend*) override {
    const StorageOptions& storage = rule_.values().storage;
    if (subject.treatment == Treatment::rest) {
      add_element_job<rules::AdamW>(jobs, subject, state, storage, rest_);
      return;
    }
    SoapJob& job = jobs.soap.emplace_back();
    fill_base(job, subject, storage, state);
    job.constants = &matrix_;
    job.most_gg = rules::kSquaresLimit;
    const Shape& shape = subject.parameter->value.shape;
    for (int mode = 0; mode < shape.rank(); ++mode) {
      job.modes.push_back({shape[mode],
                           static_cast<float*>(state.find(fmt::format("gram.{}", mode))),
                           static_cast<float*>(state.find(fmt::format("basis.{}", mode)))});
    }
    job.exp_avg = static_cast<float*>(state.find("exp_avg"));
    job.exp_avg_sq = static_cast<float*>(state.find("exp_avg_sq"));
    job.step = static_cast<std::int64_t*>(state.find("step"));
  }

 private:
  SoapRule rule_;
  rules::SoapConstants matrix_{};
  rules::AdamW::Constants rest_{};
};

std::unique_ptr<RuleInstance> SoapRule::instantiate() const {
  return std::make_unique<SoapInstance>(*this);
}

}  // namespace

std::shared_ptr<const Rule> make_rule(const SoapOptions& options) {
  return std::make_shared<SoapRule>("soap", options);
}

}  // namespace rode
