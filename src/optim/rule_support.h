// SPDX-License-Identifier: Apache-2.0
// What the rules' .cpp files share: typed options, common state and jobs.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

#include "optim/option_schema.h"
#include "optim/presets.h"
#include "optim/rest_rates.h"
#include "optim/rule.h"
#include "optim/splits.h"
#include "rode/optim/rode.h"
#include "rules/newton_schulz_rule.h"

namespace rode {

// Options, name and schema of a rule. `Derived` provides
//   static const OptionSchema<Options>& schema();
//   static void complete(Options&, const Options& before, const Settings&);
//                                                      defaults that follow other options
//   static void cross_check(std::string_view name, const Options&);
template <class Derived, class Options>
class TypedRule : public Rule {
 public:
  TypedRule(std::string name, Options options)
      : name_(std::move(name)), options_(std::move(options)) {
    Derived::schema().check(name_, options_);
    Derived::cross_check(name_, options_);
  }
  // The other options have been checked before: only `field` is new.
  TypedRule(std::string name, Options options, const OptionField<Options>& field)
      : name_(std::move(name)), options_(std::move(options)) {
    check(field);
    // It may follow lr.
    if (field.key == "lr") check(*Derived::schema().find("lr_rest"));
    Derived::cross_check(name_, options_);
  }
  std::string_view name() const override { return name_; }
  std::string_view family() const override { return family_of<Options>(); }
  std::string_view preset() const override { return name_of(options_, Derived::schema()); }
  std::vector<OptionInfo> options() const override { return Derived::schema().describe(options_); }
  const void* values(const std::type_info& type) const override {
    return type == typeid(Options) ? &options_ : nullptr;
  }
  std::shared_ptr<const Rule> with(const Settings& settings) const override {
    Options changed = options_;
    Derived::schema().apply(name_, changed, settings);
    Derived::complete(changed, options_, settings);
    return std::make_shared<Derived>(name_, changed);
  }
  std::shared_ptr<const Rule> with_number(std::string_view key, double value) const override {
    const OptionField<Options>* field = Derived::schema().find(key);
    if (field == nullptr || !field->set_number) return nullptr;
    Options changed = options_;
    field->set_number(changed, value);
    return std::make_shared<Derived>(name_, std::move(changed), *field);
  }
  std::optional<double> live_number(std::string_view key) const override {
    const OptionField<Options>* field = Derived::schema().find(key);
    if (field == nullptr || !field->number) return std::nullopt;
    return field->number(options_);
  }
  bool is_set(std::string_view key) const override {
    const OptionField<Options>* field = Derived::schema().find(key);
    return field != nullptr && (!field->is_set || field->is_set(options_));
  }
  Rule::Difference difference(const Rule& other) const override {
    const auto* theirs = static_cast<const Options*>(other.values(typeid(Options)));
    if (theirs == nullptr) return Rule::Difference::fixed;
    if (*theirs == options_) return Rule::Difference::none;
    return Derived::schema().same_fixed(*theirs, options_) ? Rule::Difference::live
                                                           : Rule::Difference::fixed;
  }
  bool leaves_rest_to_adamw() const override { return LeavesRestToAdamW<Options>; }
  void check_engine(const EngineOptions&) const override {}
  const Options& values() const { return options_; }

  static void complete(Options&, const Options&, const Settings&) {}
  static void cross_check(std::string_view, const Options&) {}

 protected:
  std::string name_;
  Options options_;

 private:
  void check(const OptionField<Options>& field) const {
    if (field.check) field.check(options_, {name_, field.key, field.get(options_)});
  }
};

bool has_key(const Settings& settings, std::string_view key);

// The 2-D view (out, rest) that every matrix rule works on, and its blocks along fan-out.
struct MatrixShape {
  std::int64_t rows = 0, cols = 0;  // as stored
  bool in_out = false;
  std::int64_t count = 1;  // of such matrices, one after the other: experts

  std::int64_t fan_out() const { return in_out ? cols : rows; }
  std::int64_t fan_in() const { return in_out ? rows : cols; }
};

// Throws in the name of `rule` if the rank is below 2.
MatrixShape matrix_shape(std::string_view rule, const Subject& subject);
// Any parameter as a matrix without gaps, whose rows int8 state is cut along: one row if the rank
// is below 2.
Geometry stored_matrix(const Parameter& parameter);

struct Block {
  std::int64_t offset = 0;  // of its first element
  Geometry geometry;
  std::int64_t fan_out = 0, fan_in = 0;
  std::int64_t first_row = 0;  // of the fan-out, over all experts
  bool in_out = false;
};
// The blocks into which option `splits` divides the parameter, expert by expert; one of each if no
// pattern matches.
std::vector<Block> matrix_blocks(std::string_view rule, std::string_view splits,
                                 const Subject& subject);
// Of state with one number for each of them; of experts, the first dimension counts those, too.
Shape per_block(const Subject& subject, const std::vector<Block>& blocks);
// Of state with one number per row of the fan-out; throws under `rule` where the rank is below 2.
Shape per_row(std::string_view rule, const Subject& subject);
// Throws if a pattern of `splits` matches none of these matrices.
void check_split_names(std::string_view rule, std::string_view splits,
                       const std::vector<std::string>& names);

// Of parameter-sized state that is not quantised.
DType moment_dtype(const StorageOptions& storage);
// Adds the state that `state_dtype` may quantise: `key`, and its scales where it is int8.
void append_momentum(std::vector<StateSpec>& specs, std::string_view key, const Subject& subject,
                     const StorageOptions& storage);
// Throws if a block begins within the scale block of another one.
void check_scale_blocks(std::string_view rule, const Subject& subject,
                        const std::vector<Block>& blocks, const StorageOptions& storage);
// Adds `low_bits` if bf16 weights are kept exactly.
void append_low_bits(std::vector<StateSpec>& specs, const Subject& subject,
                     const StorageOptions& storage);

// Adds `row_avg_sq` where rows are normalised; throws under `rule` where the rank is below 2.
void append_row_averages(std::vector<StateSpec>& specs, std::string_view rule,
                         const Subject& subject, Normalize normalize);
// Those of a block; none where the state has none.
RowAverages row_averages(const StateSlots& state, const Block& block);

// Fills what every job has. `offset` counts elements from the parameter's first.
void fill_base(JobBase& job, const Subject& subject, const StorageOptions& storage,
               const StateSlots& state, std::int64_t offset = 0);
// Of the block at `offset` in a matrix of `cols` columns.
Moments moments(const StateSlots& state, std::string_view key, std::int64_t cols,
                std::int64_t offset = 0);

// The rest's AdamW constants of any options struct that has them.
template <class Options>
rules::AdamW::Constants rest_constants(const Options& o) {
  bool cautious = false;
  if constexpr (requires { o.cautious_decay; }) cautious = o.cautious_decay;
  return {rest_lr(o), o.weight_decay_rest, o.betas_rest[0], o.betas_rest[1], o.eps_rest, 1,
          cautious};
}

// An average in bf16 stops changing if 1 - beta is below half a unit in its last place, the first
// one in int8 if what a step adds is small beside 1 / 127 of its block's largest; a warning, or
// empty.
std::string slow_average_advice(std::string_view rule, const StorageOptions& storage,
                                std::span<const double> betas);

// A number of iterations that is the coefficient set's own counts as unset: what options print as
// text then reads back as the same options, and changing the set changes the number.
template <class Options>
void complete_newton_schulz(Options& o) {
  if (o.ns_steps == rules::own_ns_steps(o.coefficients)) o.ns_steps.reset();
}

// Throws where the set of four is asked for another number of iterations.
void check_ns_steps(std::string_view rule, Coefficients set, int steps);

// The options of Newton-Schulz that depend on the engine.
struct NewtonSchulzOptions {
  NsForm form;
  NsDType dtype;
};

// The Gram form needs symmetric products, so batches. The CPU has no fp16 products, and iterates
// the Gram form only in fp32.
void check_newton_schulz(std::string_view rule, const NewtonSchulzOptions& options,
                         const EngineOptions& engine);
// Radii of rows have no phases: throws there, in the words of `what` asks for them and of the
// `remedy`.
void check_row_radius(std::string_view rule, std::string_view what, std::string_view remedy,
                      const EngineOptions& engine);

}  // namespace rode
