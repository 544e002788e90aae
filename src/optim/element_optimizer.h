// SPDX-License-Identifier: Apache-2.0
// An optimizer that is one element rule: state, jobs and live constants follow from the rule's
// type.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "optim/rule_support.h"
#include "rules/element_rules.h"

namespace rode {

template <class Element>
std::vector<StateSpec> element_state(const Subject& subject, const StorageOptions& storage) {
  std::vector<StateSpec> specs;
  for (const char* key : Element::kKeys) {
    if (Element::kQuantizesFirst && key == Element::kKeys[0]) {
      append_momentum(specs, key, subject, storage);
    } else {
      specs.push_back({key, subject.parameter->value.shape, moment_dtype(storage)});
    }
  }
  if (Element::kCountsSteps) specs.push_back({"step", {1}, DType::i64});
  append_low_bits(specs, subject, storage);
  return specs;
}

template <class Element>
void add_element_job(JobList& jobs, const Subject& subject, const StateSlots& state,
                     const StorageOptions& storage, const typename Element::Constants& constants) {
  ElementJob& job = jobs.element.emplace_back();
  fill_base(job, subject, storage, state);
  job.constants = rules::ElementConstants<Element>{&constants};
  if constexpr (requires { typename Element::Cautious; }) {
    if (constants.cautious) {
      job.constants = rules::ElementConstants<typename Element::Cautious>{&constants};
    }
  }
  job.geometry = stored_matrix(*subject.parameter);
  if (Element::kAveragesSquares) job.most_gg = rules::kSquaresLimit;
  for (int i = 0; i < Element::kMoments; ++i) {
    job.state[i] = moments(state, Element::kKeys[i], job.geometry.cols);
  }
  job.step = static_cast<std::int64_t*>(state.find("step"));
}

// The rest uses the same rule with its own rates. `Derived` provides, besides what TypedRule
// requires,
//   static Element::Constants constants(const Options&, double lr, double weight_decay);
template <class Derived, class Options, class Element>
class ElementOptimizer : public TypedRule<Derived, Options> {
 public:
  using TypedRule<Derived, Options>::TypedRule;

  std::string advice() const override {
    if constexpr (requires(const Options& o) { o.betas; }) {
      return slow_average_advice(this->name_, this->options_.storage, this->options_.betas);
    } else {
      return {};
    }
  }

  std::vector<StateSpec> state(const Subject& subject) const override {
    return element_state<Element>(subject, this->options_.storage);
  }

  std::unique_ptr<RuleInstance> instantiate() const override {
    return std::make_unique<Instance>(static_cast<const Derived&>(*this));
  }

 private:
  class Instance final : public RuleInstance {
   public:
    explicit Instance(const Derived& rule) : storage_(rule.values().storage) { refresh(rule); }

    void refresh(const Rule& rule) override {
      const Options& o = static_cast<const Derived&>(rule).values();
      matrix_ = Derived::constants(o, o.lr, o.weight_decay);
      rest_ = Derived::constants(o, rest_lr(o), rest_weight_decay(o));
    }

    void add_jobs(JobList& jobs, const Subject& subject, const StateSlots& state,
                  Backend*) override {
      add_element_job<Element>(jobs, subject, state, storage_,
                               subject.treatment == Treatment::matrix ? matrix_ : rest_);
    }

   private:
    StorageOptions storage_;
    typename Element::Constants matrix_{}, rest_{};
  };
};

}  // namespace rode
