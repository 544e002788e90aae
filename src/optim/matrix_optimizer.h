// SPDX-License-Identifier: Apache-2.0
// An optimizer of matrices that leaves the rest to AdamW: the rest's state and jobs, the checks of
// Newton-Schulz and of splits, and the live constants follow from its options.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "optim/element_optimizer.h"
#include "optim/rule_support.h"

namespace rode {

// `Derived` provides, besides what TypedRule requires,
//   static Constants constants(const Options&);
//   std::vector<StateSpec> matrix_state(const Subject&) const;
//   void add_matrix_jobs(JobList&, const Subject&, const StateSlots&, const Constants&,
//                        Backend*) const;       the constants stay where they are and change
template <class Derived, class Options, class Constants>
class MatrixOptimizer : public TypedRule<Derived, Options> {
 public:
  using TypedRule<Derived, Options>::TypedRule;

  static void complete(Options& o, const Options&, const Settings&) {
    if constexpr (kIterates) complete_newton_schulz(o);
  }

  static void cross_check(std::string_view name, const Options& o) {
    if constexpr (kIterates) check_ns_steps(name, o.coefficients, ns_steps_of(o));
    if constexpr (kSplits) Splits(name, o.splits);
  }

  void check_engine(const EngineOptions& engine) const override {
    if constexpr (kIterates) {
      check_newton_schulz(this->name_, {this->options_.ns_form, this->options_.ns_dtype}, engine);
    }
  }

  void check_names(const std::vector<std::string>& names) const override {
    if constexpr (kSplits) check_split_names(this->name_, this->options_.splits, names);
  }

  std::vector<StateSpec> state(const Subject& subject) const override {
    const StorageOptions& storage = this->options_.storage;
    if (subject.treatment == Treatment::rest) return element_state<rules::AdamW>(subject, storage);
    std::vector<StateSpec> specs = self().matrix_state(subject);
    append_low_bits(specs, subject, storage);
    return specs;
  }

  std::unique_ptr<RuleInstance> instantiate() const override {
    return std::make_unique<Instance>(self());
  }

 protected:
  std::vector<Block> blocks(const Subject& subject) const {
    if constexpr (kSplits) return matrix_blocks(this->name_, this->options_.splits, subject);
    return matrix_blocks(this->name_, "", subject);
  }

  // State that begins with the momentum.
  std::vector<StateSpec> momentum_state(const Subject& subject,
                                        const std::vector<Block>& parts) const {
    check_scale_blocks(this->name_, subject, parts, this->options_.storage);
    std::vector<StateSpec> specs;
    append_momentum(specs, "momentum", subject, this->options_.storage);
    return specs;
  }

  // A job with what every rule of momentum and Newton-Schulz has.
  template <class Job>
  Job& add_block(std::deque<Job>& jobs, const Block& block, const Subject& subject,
                 const StateSlots& state, const Constants& constants) const {
    Job& job = jobs.emplace_back();
    fill_base(job, subject, this->options_.storage, state, block.offset);
    job.constants = &constants;
    job.geometry = block.geometry;
    job.momentum = moments(state, "momentum", block.geometry.stride, block.offset);
    job.rows = row_averages(state, block);
    return job;
  }

 private:
  static constexpr bool kIterates = requires(const Options& o) { o.ns_form; };
  static constexpr bool kSplits = requires(const Options& o) { o.splits; };

  class Instance final : public RuleInstance {
   public:
    explicit Instance(const Derived& rule) : rule_(rule) { refresh(rule); }

    void refresh(const Rule& rule) override {
      const Options& o = static_cast<const Derived&>(rule).values();
      matrix_ = Derived::constants(o);
      rest_ = rest_constants(o);
    }

    void add_jobs(JobList& jobs, const Subject& subject, const StateSlots& state,
                  Backend* backend) override {
      if (subject.treatment == Treatment::rest) {
        add_element_job<rules::AdamW>(jobs, subject, state, rule_.values().storage, rest_);
      } else {
        rule_.add_matrix_jobs(jobs, subject, state, matrix_, backend);
      }
    }

   private:
    Derived rule_;  // its fixed options; the live ones are in the constants
    Constants matrix_{};
    rules::AdamW::Constants rest_{};
  };

  const Derived& self() const { return static_cast<const Derived&>(*this); }
};

}  // namespace rode
