// SPDX-License-Identifier: Apache-2.0
// RODE's options, state and jobs.
#include "rode/optim/rode.h"

#include "optim/matrix_optimizer.h"
#include "optim/zero_start.h"
#include "rode/error.h"

namespace rode {
namespace {

double default_lr_rho(const RodeOptions& o) {
  switch (o.radius) {
    case Radius::adaptive: return 3e-2;
    case Radius::fixed: return 0;
    case Radius::learned: break;
  }
  return o.snr ? 3.698e-5 : 2.438e-3;
}

class RodeRule final : public MatrixOptimizer<RodeRule, RodeOptions, rules::RodeConstants> {
 public:
  using MatrixOptimizer::MatrixOptimizer;

  static const OptionSchema<RodeOptions>& schema() {
    using O = RodeOptions;
    static const OptionSchema<O> table([] {
      std::vector<OptionField<O>> f;
      f.push_back(optional_number<O>("lr", &O::lr, matrix_lr<O>, at_least(0),
                                     "rate of the direction, which scale turns into an angle; its "
                                     "default depends on scale and snr"));
      f.push_back(
          optional_number("lr_rho", &O::lr_rho, default_lr_rho, at_least(0),
                          "rate of the radius, relative with radius=adaptive; unless set, "
                          "0.03; with radius=learned 0.002438, or 3.698e-05 if snr is on too"));
      f.push_back(choice(
          "scale", &O::scale, {"kernel", "angle"},
          "angle of a step per lr. kernel: the norm q of the orthogonalised matrix, as published. "
          "angle: q / sqrt(min(fan-out, fan-in)), which does not grow with the width"));
      f.push_back(
          number("momentum", &O::momentum, unit_interval(), "decay of the raw momentum buffer"));
      f.push_back(choice("radius", &O::radius, {"learned", "adaptive", "fixed"},
                         "how the norm of a matrix changes"));
      f.push_back(number("radius_brake", &O::radius_brake, at_least(0),
                         "factor on steps that lengthen the radius"));
      f.push_back(number("radius_pull", &O::radius_pull, at_least(0),
                         "how fast an adaptive radius below sqrt(fan-out) grows towards it, per "
                         "radian that the direction turns"));
      f.push_back(choice("radius_scope", &O::radius_scope, {"matrix", "rows"},
                         "one radius per matrix, or one per row of the fan-out (needs reproject = "
                         "final)"));
      f.push_back(choice("direction", &O::direction, {"geodesic", "retraction", "fixed"},
                         "how the direction changes"));
      f.push_back(choice("conditioner", &O::conditioner, {"newton_schulz", "none"},
                         "conditioning of the tangent momentum"));
      f.push_back(choice("reproject", &O::reproject, {"guarded", "every", "final"},
                         "projection inside Newton-Schulz; every: as published, can diverge"));
      append_newton_schulz(f);
      append_normalize(f);
      f.push_back(boolean("nesterov", &O::nesterov, "Nesterov look-ahead"));
      f.push_back(boolean("snr", &O::snr, "damp the angle by the signal-to-noise ratio"));
      f.push_back(
          number("snr_min", &O::snr_min, between(0, 1), "lower bound of the damping by snr"));
      f.push_back(number("floor", &O::floor, unit_interval(),
                         "smallest factor by which one step may shrink the radius"));
      f.push_back(number("eps", &O::eps, at_least(0), "a norm at or below it counts as zero"));
      f.push_back(number("eps_ns", &O::eps_ns, at_least(0),
                         "a tangent momentum at or below it has no direction"));
      f.push_back(choice(
          "on_zero", &O::on_zero, {"rest", "start", "hold"},
          "what happens to a matrix that is zero at construction. rest: the rest's rule updates "
          "it. start: it starts along its momentum. hold: it stays zero, as published"));
      f.push_back(text("splits", &O::splits,
                       "blocks of fused matrices along fan-out; PATTERN=3 or PATTERN=a+b+c"));
      append_rest(f);
      append_cautious_decay(f, "of the rest ");
      append_storage(f, true);
      return f;
    }());
    return table;
  }

  // Rates that were given belong to the radius and the scale that they were given for; others have
  // their own defaults.
  static void complete(RodeOptions& o, const RodeOptions& before, const Settings& settings) {
    if (o.radius != before.radius && !has_key(settings, "lr_rho")) o.lr_rho.reset();
    if (o.scale != before.scale && !has_key(settings, "lr")) o.lr.reset();
    MatrixOptimizer::complete(o, before, settings);
  }

  static void cross_check(std::string_view name, const RodeOptions& o) {
    if (o.reproject == Reproject::every && o.coefficients != Coefficients::jordan) {
      throw Error(ErrorKind::invalid_argument, name,
                  "option 'reproject' = 'every', but 'coefficients' is not 'jordan'; other "
                  "polynomials diverge when the iterate is projected inside the iteration without "
                  "a guard; set reproject=guarded, reproject=final or coefficients=jordan");
    }
    MatrixOptimizer::cross_check(name, o);
    if (o.ns_form == NsForm::gram && o.reproject != Reproject::final) {
      throw Error(ErrorKind::invalid_argument, name,
                  "option 'ns_form' = 'gram', but 'reproject' is not 'final'; the Gram form cannot "
                  "project inside the iteration; set reproject=final or ns_form=standard");
    }
    if (o.radius_scope == RadiusScope::rows && o.reproject != Reproject::final) {
      throw Error(ErrorKind::invalid_argument, name,
                  "option 'radius_scope' = 'rows', but 'reproject' is not 'final'; inside "
                  "Newton-Schulz there is one projection, along the whole matrix, and the guard is "
                  "made for it; set reproject=final or radius_scope=matrix");
    }
    check_start(name, o);
  }

  void check_engine(const EngineOptions& engine) const override {
    MatrixOptimizer::check_engine(engine);
    if (options_.radius_scope == RadiusScope::rows) {
      check_row_radius(name_, "option 'radius_scope' = 'rows'", "set radius_scope=matrix", engine);
    }
  }

  void check_share() const override {
    if (options_.on_zero != OnZero::start) return;
    throw Error(ErrorKind::unsupported, name_,
                "option 'on_zero' = 'start', but the matrices are divided between processes: the "
                "length of a start is a median over all matrices, and no process has them all; "
                "set on_zero=rest or on_zero=hold, or give every process all matrices");
  }

  std::optional<double> zero_norm() const override {
    return options_.on_zero == OnZero::rest ? std::optional(options_.eps) : std::nullopt;
  }

  static rules::RodeConstants constants(const RodeOptions& o) {
    return {.lr = matrix_lr(o),
            .lr_rho = o.lr_rho.value_or(default_lr_rho(o)),
            .momentum = o.momentum,
            .snr_min = o.snr_min,
            .floor = o.floor,
            .eps = o.eps,
            .eps_ns = o.eps_ns,
            .ns_steps = ns_steps_of(o),
            .radius = o.radius,
            .direction = o.direction,
            .conditioner = o.conditioner,
            .reproject = o.reproject,
            .coefficients = o.coefficients,
            .ns_dtype = o.ns_dtype,
            .ns_form = o.ns_form,
            .nesterov = o.nesterov,
            .snr = o.snr,
            .row_beta = o.row_beta,
            .radius_brake = o.radius_brake,
            .radius_pull = o.radius_pull,
            .scale = o.scale,
            .radius_scope = o.radius_scope};
  }

  std::vector<StateSpec> matrix_state(const Subject& subject) const {
    const RodeOptions& o = options_;
    const std::vector<Block> parts = blocks(subject);
    const Shape count = per_block(subject, parts);
    const Shape radii = o.radius_scope == RadiusScope::rows ? per_row(name_, subject) : count;
    std::vector<StateSpec> specs = momentum_state(subject, parts);
    if (o.snr) specs.push_back({"snr_norm", count, DType::f32});
    if (o.on_zero == OnZero::start) specs.push_back({std::string(kStartNorm), count, DType::f32});
    if (o.radius == Radius::fixed) specs.push_back({"radius", radii, DType::f32});
    if (o.radius == Radius::adaptive) {
      specs.push_back({"radius_avg", radii, DType::f32});
      specs.push_back({"radius_avg_sq", radii, DType::f32});
      specs.push_back({"step", count, DType::i64});
    }
    append_row_averages(specs, name_, subject, o.normalize);
    return specs;
  }

  void add_matrix_jobs(JobList& jobs, const Subject& subject, const StateSlots& state,
                       const rules::RodeConstants& constants, Backend* backend) const {
    const auto scalar = [&](std::string_view key, std::size_t at) {
      auto* data = static_cast<float*>(state.find(key));
      return data == nullptr ? nullptr : data + at;
    };
    const bool of_rows = constants.radius_scope == RadiusScope::rows;
    const std::vector<Block> parts = blocks(subject);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      RodeJob& job = add_block(jobs.rode, parts[i], subject, state, constants);
      if (constants.radius == Radius::adaptive) job.most_gg = rules::kSquaresLimit;
      job.scale = rules::rode_scale(constants, parts[i].fan_out, parts[i].fan_in);
      job.target = rules::radius_target(constants, parts[i].fan_out, parts[i].fan_in);
      job.fan_in = parts[i].fan_in;
      auto* step = static_cast<std::int64_t*>(state.find("step"));
      const std::size_t radius = of_rows ? static_cast<std::size_t>(parts[i].first_row) : i;
      job.state = {scalar("snr_norm", i),
                   scalar("radius", radius),
                   scalar("radius_avg", radius),
                   scalar("radius_avg_sq", radius),
                   step == nullptr ? nullptr : step + i,
                   scalar(kStartNorm, i)};
      // Radii of rows are measured by the first step.
      if (job.state.radius != nullptr && !of_rows && !state.kept("radius")) {
        backend->store_norm(job.weight, job.geometry, job.state.radius);
      }
    }
  }

 private:
  static void check_start(std::string_view name, const RodeOptions& o) {
    if (o.on_zero != OnZero::start) return;
    if (o.direction == Direction::fixed) {
      throw Error(
          ErrorKind::invalid_argument, name,
          "option 'on_zero' = 'start', but 'direction' is 'fixed'; a matrix without a direction "
          "could never get one; set direction=geodesic, on_zero=rest or on_zero=hold");
    }
    if (o.radius_scope == RadiusScope::rows) {
      throw Error(ErrorKind::invalid_argument, name,
                  "option 'on_zero' = 'start', but 'radius_scope' is 'rows'; a start gives the "
                  "whole matrix one radius, and rows of zeros would stay zero; set "
                  "radius_scope=matrix, on_zero=rest or on_zero=hold");
    }
  }
};

}  // namespace

RodeOptions RodeOptions::paper() {
  RodeOptions o = published_rode();
  o.reproject = Reproject::every;
  o.on_zero = OnZero::hold;
  return o;
}

std::shared_ptr<const Rule> make_rule(const RodeOptions& options) {
  return std::make_shared<RodeRule>(std::string(name_of(options, RodeRule::schema())), options);
}

}  // namespace rode
