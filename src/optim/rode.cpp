// SPDX-License-Identifier: Apache-2.0
// RODE's options, state and jobs.
#include "rode/optim/rode.h"

#include "optim/element_optimizer.h"
#include "optim/rule_support.h"
#include "rode/error.h"

namespace rode {
namespace {

double default_lr_rho(const RodeOptions& o) {
  switch (o.radius) {
    case Radius::adaptive: return 1e-2;
    case Radius::fixed: return 0;
    case Radius::learned: break;
  }
  return 2.438e-3;
}

class RodeRule final : public TypedRule<RodeRule, RodeOptions> {
 public:
  using TypedRule::TypedRule;

  static const OptionSchema<RodeOptions>& schema() {
    using O = RodeOptions;
    static const OptionSchema<O> table([] {
      std::vector<OptionField<O>> f;
      f.push_back(number("lr", &O::lr, at_least(0),
                         "directional rate: angle per norm of the orthogonalised matrix"));
      f.push_back(
          optional_number("lr_rho", &O::lr_rho, default_lr_rho, at_least(0),
                          "radial rate; relative if radius = adaptive (default then 0.01)"));
      f.push_back(choice("scale", &O::scale, {"kernel", "angle"},
                         "angle per lr; kernel: the norm of the orthogonalised matrix, angle: that "
                         "over sqrt(min(fan-out, fan-in)), which does not grow with width"));
      f.push_back(number("momentum", &O::momentum, unit_interval(), "of the raw buffer"));
      f.push_back(choice("radius", &O::radius, {"learned", "adaptive", "fixed"},
                         "how the norm of a matrix changes"));
      f.push_back(number("radius_brake", &O::radius_brake, at_least(0),
                         "factor on steps that lengthen the radius"));
      f.push_back(choice("direction", &O::direction, {"geodesic", "retraction", "fixed"},
                         "how the direction changes"));
      f.push_back(choice("conditioner", &O::conditioner, {"newton_schulz", "none"},
                         "conditioning of the tangent momentum"));
      f.push_back(choice("reproject", &O::reproject, {"guarded", "every", "final"},
                         "projection inside Newton-Schulz; every: as published, can diverge"));
      append_newton_schulz(f);
      append_normalize(f);
      f.push_back(boolean("nesterov", &O::nesterov, "look-ahead start of the direction"));
      f.push_back(boolean("snr", &O::snr, "damp the angle by the signal-to-noise ratio"));
      f.push_back(number("snr_min", &O::snr_min, between(0, 1), "lower bound of that damping"));
      f.push_back(number("floor", &O::floor, unit_interval(),
                         "smallest factor by which one step may shrink the radius"));
      f.push_back(number("eps", &O::eps, at_least(0), "a norm at or below it counts as zero"));
      f.push_back(number("eps_ns", &O::eps_ns, at_least(0),
                         "a tangent momentum at or below it has no direction"));
      f.push_back(choice("on_zero", &O::on_zero, {"rest", "hold"},
                         "a matrix that is zero at construction: stepped by the rest's rule, or "
                         "held at zero as published"));
      f.push_back(text("splits", &O::splits,
                       "blocks of fused matrices along fan-out; PATTERN=3 or PATTERN=a+b+c"));
      append_rest(f);
      append_storage(f, true);
      return f;
    }());
    return table;
  }

  // A preset's rate belongs to its learned radius; other radius rules have their own default.
  static void complete(RodeOptions& o, const RodeOptions& before, const Settings& settings) {
    if (o.radius != before.radius && !has_key(settings, "lr_rho")) o.lr_rho.reset();
    complete_newton_schulz(o);
  }

  static void cross_check(std::string_view name, const RodeOptions& o) {
    if (o.reproject == Reproject::every && o.coefficients != Coefficients::jordan) {
      throw Error(ErrorKind::invalid_argument, name,
                  "option 'reproject' = 'every', but 'coefficients' is not 'jordan'; other "
                  "polynomials diverge when the iterate is projected inside the iteration without "
                  "a guard; set reproject=guarded, reproject=final or coefficients=jordan");
    }
    check_ns_steps(name, o.coefficients, ns_steps_of(o));
    if (o.ns_form == NsForm::gram && o.reproject != Reproject::final) {
      throw Error(ErrorKind::invalid_argument, name,
                  "option 'ns_form' = 'gram', but 'reproject' is not 'final'; the Gram form cannot "
                  "project inside the iteration; set reproject=final or ns_form=standard");
    }
    Splits(name, o.splits);
  }

  void check_engine(const EngineOptions& engine) const override {
    check_newton_schulz(
        name_, {options_.coefficients, options_.ns_form, options_.ns_dtype, options_.reproject},
        engine);
    check_state_dtype(name_, options_.storage, engine);
  }

  void check_names(const std::vector<std::string>& names) const override {
    check_split_names(name_, options_.splits, names);
  }

  std::optional<double> zero_norm() const override {
    return options_.on_zero == OnZero::rest ? std::optional(options_.eps) : std::nullopt;
  }

  std::vector<Block> blocks(const Subject& subject) const {
    return matrix_blocks(name_, options_.splits, subject);
  }

  std::vector<StateSpec> state(const Subject& subject) const override {
    const RodeOptions& o = options_;
    if (subject.treatment == Treatment::rest)
      return element_state<rules::AdamW>(subject, o.storage);
    const std::vector<Block> parts = blocks(subject);
    const auto count = static_cast<std::int64_t>(parts.size());
    check_scale_blocks(name_, subject, parts, o.storage);
    std::vector<StateSpec> specs;
    append_momentum(specs, "momentum", subject, o.storage);
    if (o.snr) specs.push_back({"snr_norm", {count}, DType::f32});
    if (o.radius == Radius::fixed) specs.push_back({"radius", {count}, DType::f32});
    if (o.radius == Radius::adaptive) {
      specs.push_back({"radius_avg", {count}, DType::f32});
      specs.push_back({"radius_avg_sq", {count}, DType::f32});
      specs.push_back({"step", {count}, DType::i64});
    }
    append_row_averages(specs, name_, subject, o.normalize);
    append_low_bits(specs, subject, o.storage);
    return specs;
  }

  std::unique_ptr<RuleInstance> instantiate() const override;
};

class RodeInstance final : public RuleInstance {
 public:
  explicit RodeInstance(const RodeRule& rule) : rule_(rule) { refresh(rule); }

  void refresh(const Rule& rule) override {
    const RodeOptions& o = static_cast<const RodeRule&>(rule).values();
    const double lr_rho = o.lr_rho.value_or(default_lr_rho(o));
    matrix_ = {o.lr,          lr_rho,      o.momentum,     o.snr_min,      o.floor,
               o.eps,         o.eps_ns,    ns_steps_of(o), o.radius,       o.direction,
               o.conditioner, o.reproject, o.coefficients, o.ns_dtype,     o.ns_form,
               o.nesterov,    o.snr,       o.row_beta,     o.radius_brake, o.scale};
    rest_ = rest_constants(o);
  }

  void add_jobs(JobList& jobs, const Subject& subject, const StateSlots& state,
                Backend* backend) override {
    const StorageOptions& storage = rule_.values().storage;
    if (subject.treatment == Treatment::rest) {
      add_element_job<rules::AdamW>(jobs, subject, state, storage, rest_);
      return;
    }
    const auto scalar = [&](std::string_view key, std::size_t block) {
      auto* data = static_cast<float*>(state.find(key));
      return data == nullptr ? nullptr : data + block;
    };
    const std::vector<Block> blocks = rule_.blocks(subject);
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      RodeJob& job = jobs.rode.emplace_back();
      fill_base(job, subject, storage, state, blocks[i].offset);
      job.constants = &matrix_;
      job.geometry = blocks[i].geometry;
      if (matrix_.radius == Radius::adaptive) job.most_gg = rules::kSquaresLimit;
      job.momentum = moments(state, "momentum", blocks[i].geometry.stride, blocks[i].offset);
      job.rows = row_averages(state, blocks[i]);
      job.scale = rules::rode_scale(matrix_, static_cast<double>(blocks[i].fan_out),
                                    static_cast<double>(blocks[i].fan_in));
      auto* step = static_cast<std::int64_t*>(state.find("step"));
      job.state = {scalar("snr_norm", i), scalar("radius", i), scalar("radius_avg", i),
                   scalar("radius_avg_sq", i), step == nullptr ? nullptr : step + i};
      if (job.state.radius != nullptr && !state.kept("radius")) {
        backend->store_norm(job.weight, job.geometry, job.state.radius);
      }
    }
  }

 private:
  RodeRule rule_;
  rules::RodeConstants matrix_{};
  rules::AdamW::Constants rest_{};
};

std::unique_ptr<RuleInstance> RodeRule::instantiate() const {
  return std::make_unique<RodeInstance>(*this);
}

}  // namespace

std::shared_ptr<const Rule> make_rule(const RodeOptions& options) {
  return std::make_shared<RodeRule>(std::string(name_of(options, RodeRule::schema())), options);
}

}  // namespace rode
