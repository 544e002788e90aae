// SPDX-License-Identifier: Apache-2.0
// MARS-M's options, state and jobs.
#include "rode/optim/mars_m.h"

#include "optim/matrix_optimizer.h"

namespace rode {
namespace {

class MarsMRule final : public MatrixOptimizer<MarsMRule, MarsMOptions, rules::MuonConstants> {
 public:
  using MatrixOptimizer::MatrixOptimizer;

  static const OptionSchema<MarsMOptions>& schema() {
    using O = MarsMOptions;
    static const OptionSchema<O> table([] {
      std::vector<OptionField<O>> f;
      f.push_back(number("lr", &O::lr, at_least(0), "rate of the matrices"));
      f.push_back(number("weight_decay", &O::weight_decay, at_least(0),
                         "decoupled decay of the matrices, by the unscaled rate"));
      f.push_back(number("momentum", &O::momentum, unit_interval(),
                         "decay of the average of the corrected gradient"));
      f.push_back(number("gamma", &O::gamma, at_least(0), "strength of variance reduction"));
      append_newton_schulz(f);
      append_normalize(f);
      f.push_back(number("eps", &O::eps, at_least(0), "added to the norm before dividing"));
      append_rest(f);
      append_cautious_decay(f, "");
      append_storage(f, true);
      return f;
    }());
    return table;
  }

  static rules::MuonConstants constants(const MarsMOptions& o) {
    return {.lr = o.lr,
            .weight_decay = o.weight_decay,
            .momentum = o.momentum,
            .eps = o.eps,
            .nesterov = false,
            .scale = MuonScale::rms,
            .constraint = MuonConstraint::none,
            .mars = true,
            .gamma = o.gamma,
            .ns_steps = ns_steps_of(o),
            .coefficients = o.coefficients,
            .ns_dtype = o.ns_dtype,
            .ns_form = o.ns_form,
            .row_beta = o.row_beta,
            .cautious = o.cautious_decay};
  }

  std::vector<StateSpec> matrix_state(const Subject& subject) const {
    std::vector<StateSpec> specs = momentum_state(subject, blocks(subject));
    specs.push_back(
        {"previous_grad", subject.parameter->value.shape, moment_dtype(options_.storage)});
    append_row_averages(specs, name_, subject, options_.normalize);
    return specs;
  }

  void add_matrix_jobs(JobList& jobs, const Subject& subject, const StateSlots& state,
                       const rules::MuonConstants& constants, Backend*) const {
    for (const Block& block : blocks(subject)) {
      MuonJob& job = add_block(jobs.muon, block, subject, state, constants);
      job.previous = moments(state, "previous_grad", block.geometry.stride, block.offset);
      job.scale = rules::muon_scale(constants, block.fan_out, block.fan_in);
    }
  }
};

}  // namespace

std::shared_ptr<const Rule> make_rule(const MarsMOptions& options) {
  return std::make_shared<MarsMRule>("mars-m", options);
}

}  // namespace rode
