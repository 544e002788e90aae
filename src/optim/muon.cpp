// SPDX-License-Identifier: Apache-2.0
// Muon's options, state and jobs.
#include "rode/optim/muon.h"

#include <fmt/format.h>

#include "optim/matrix_optimizer.h"
#include "rode/error.h"

namespace rode {
namespace {

class MuonRule final : public MatrixOptimizer<MuonRule, MuonOptions, rules::MuonConstants> {
 public:
  using MatrixOptimizer::MatrixOptimizer;

  static const OptionSchema<MuonOptions>& schema() {
    using O = MuonOptions;
    static const OptionSchema<O> table([] {
      std::vector<OptionField<O>> f;
      f.push_back(optional_number<O>("lr", &O::lr, matrix_lr<O>, at_least(0),
                                     "rate of the matrices; its default depends on scale"));
      f.push_back(number("weight_decay", &O::weight_decay, at_least(0),
                         "decoupled decay of the matrices, by the unscaled rate"));
      f.push_back(number("momentum", &O::momentum, unit_interval(),
                         "weight of the old buffer in the averaged gradient"));
      f.push_back(boolean("nesterov", &O::nesterov, "look-ahead"));
      append_newton_schulz(f);
      append_normalize(f);
      f.push_back(
          number("eps", &O::eps, at_least(0), "smallest norm by which the momentum is divided"));
      f.push_back(
          choice("scale", &O::scale, {"original", "rms"},
                 "factor of the update. original: sqrt(max(1, m/n)). rms: 0.2 sqrt(max(m, n))"));
      f.push_back(choice("constraint", &O::constraint, {"none", "normproj", "hyperball"},
                         "norm of each matrix. none: free. normproj: projected to its initial "
                         "value. hyperball: MuonH"));
      f.push_back(text("splits", &O::splits,
                       "blocks of fused matrices along fan-out; PATTERN=3 or PATTERN=a+b+c"));
      append_rest(f);
      append_cautious_decay(f, "");
      append_storage(f, true);
      return f;
    }());
    return table;
  }

  // A rate that was given belongs to the scale that it was given for.
  static void complete(MuonOptions& o, const MuonOptions& before, const Settings& settings) {
    if (o.scale != before.scale && !has_key(settings, "lr")) o.lr.reset();
    MatrixOptimizer::complete(o, before, settings);
  }

  static void cross_check(std::string_view name, const MuonOptions& o) {
    MatrixOptimizer::cross_check(name, o);
    if (o.constraint == MuonConstraint::hyperball && o.weight_decay != 0) {
      throw Error(ErrorKind::invalid_argument, name,
                  fmt::format("option 'weight_decay' = {} with constraint=hyperball, which keeps "
                              "the norm fixed and has no decay; set weight_decay=0",
                              o.weight_decay));
    }
    if (o.cautious_decay && o.constraint == MuonConstraint::normproj && o.weight_decay != 0) {
      throw Error(ErrorKind::invalid_argument, name,
                  fmt::format("option 'cautious_decay' = true with constraint=normproj and "
                              "weight_decay = {}; the norm is restored from sums over the whole "
                              "matrix, which a decay of some elements does not have; set "
                              "weight_decay=0 or cautious_decay=false",
                              o.weight_decay));
    }
  }

  static rules::MuonConstants constants(const MuonOptions& o) {
    return {.lr = matrix_lr(o),
            .weight_decay = o.weight_decay,
            .momentum = o.momentum,
            .eps = o.eps,
            .nesterov = o.nesterov,
            .scale = o.scale,
            .constraint = o.constraint,
            .mars = false,
            .gamma = 0,
            .ns_steps = ns_steps_of(o),
            .coefficients = o.coefficients,
            .ns_dtype = o.ns_dtype,
            .ns_form = o.ns_form,
            .row_beta = o.row_beta,
            .cautious = o.cautious_decay};
  }

  std::vector<StateSpec> matrix_state(const Subject& subject) const {
    const std::vector<Block> parts = blocks(subject);
    std::vector<StateSpec> specs = momentum_state(subject, parts);
    if (options_.constraint != MuonConstraint::none) {
      specs.push_back({"radius", per_block(subject, parts), DType::f32});
    }
    append_row_averages(specs, name_, subject, options_.normalize);
    return specs;
  }

  void add_matrix_jobs(JobList& jobs, const Subject& subject, const StateSlots& state,
                       const rules::MuonConstants& constants, Backend* backend) const {
    auto* radius = static_cast<float*>(state.find("radius"));
    for (const Block& block : blocks(subject)) {
      MuonJob& job = add_block(jobs.muon, block, subject, state, constants);
      job.scale = rules::muon_scale(constants, block.fan_out, block.fan_in);
      if (radius != nullptr) {
        job.radius = radius++;
        if (!state.kept("radius")) backend->store_norm(job.weight, job.geometry, job.radius);
      }
    }
  }
};

}  // namespace

std::shared_ptr<const Rule> make_rule(const MuonOptions& options) {
  return std::make_shared<MuonRule>(std::string(name_of(options, MuonRule::schema())), options);
}

}  // namespace rode
