// SPDX-License-Identifier: Apache-2.0
// Muown's options, state and jobs.
#include "rode/optim/muown.h"

#include <string_view>

#include "optim/matrix_optimizer.h"

namespace rode {
namespace {

// Not lr itself: as with RODE, a rate of the radii does not move with the other unless it is
// coupled.
double default_lr_rho(const MuownOptions&) { return MuownOptions{}.lr; }

class MuownRule final : public MatrixOptimizer<MuownRule, MuownOptions, rules::MuonConstants> {
 public:
  using MatrixOptimizer::MatrixOptimizer;

  static const OptionSchema<MuownOptions>& schema() {
    using O = MuownOptions;
    static const OptionSchema<O> table([] {
      std::vector<OptionField<O>> f;
      f.push_back(number("lr", &O::lr, at_least(0), "rate of the directions of the rows"));
      f.push_back(optional_number("lr_rho", &O::lr_rho, default_lr_rho, at_least(0),
                                  "Adam's rate of the lengths of the rows (the authors use the "
                                  "same rate for lengths and directions)"));
      f.push_back(number("weight_decay", &O::weight_decay, at_least(0),
                         "decoupled decay of the matrices, by the unscaled rate"));
      f.push_back(number("momentum", &O::momentum, unit_interval(),
                         "decay of the buffer that adds up the gradients of the directions"));
      f.push_back(boolean("nesterov", &O::nesterov, "look-ahead"));
      f.push_back(numbers("betas_radius", &O::betas_radius, unit_interval(),
                          "decay of Adam's averages of the lengths"));
      f.push_back(number("eps_radius", &O::eps_radius, more_than(0),
                         "added to Adam's denominator for the lengths"));
      append_newton_schulz(f);
      f.push_back(number("eps", &O::eps, at_least(0), "added to the norm before dividing"));
      f.push_back(text("splits", &O::splits,
                       "blocks of fused matrices along fan-out; PATTERN=3 or PATTERN=a+b+c"));
      append_rest(f);
      append_storage(f, true);
      return f;
    }());
    return table;
  }

  static rules::MuonConstants constants(const MuownOptions& o) {
    return {.lr = o.lr,
            .weight_decay = o.weight_decay,
            .momentum = o.momentum,
            .eps = o.eps,
            .nesterov = o.nesterov,
            .scale = MuonScale::rms,
            .constraint = MuonConstraint::none,
            .mars = false,
            .gamma = 0,
            .ns_steps = ns_steps_of(o),
            .coefficients = o.coefficients,
            .ns_dtype = o.ns_dtype,
            .ns_form = o.ns_form,
            .row_beta = 0,
            .muown = {.on = true,
                      .lr_rho = o.lr_rho.value_or(default_lr_rho(o)),
                      .beta1 = o.betas_radius[0],
                      .beta2 = o.betas_radius[1],
                      .eps = o.eps_radius}};
  }

  void check_engine(const EngineOptions& engine) const override {
    check_row_radius(name_, "muown", "choose another optimizer", engine);
    MatrixOptimizer::check_engine(engine);
  }

  std::optional<double> zero_norm() const override { return 0.0; }

  std::vector<StateSpec> matrix_state(const Subject& subject) const {
    const std::vector<Block> parts = blocks(subject);
    const Shape rows = per_row(name_, subject);
    std::vector<StateSpec> specs = momentum_state(subject, parts);
    for (const char* key : {"radius", "direction_norm", "radius_avg", "radius_avg_sq"}) {
      // A length may pass through zero; it keeps its sign.
      specs.push_back({key, rows, DType::f32, std::string_view(key) == "radius"});
    }
    specs.push_back({"step", per_block(subject, parts), DType::i64});
    return specs;
  }

  void add_matrix_jobs(JobList& jobs, const Subject& subject, const StateSlots& state,
                       const rules::MuonConstants& constants, Backend*) const {
    const auto over_rows = [&](std::string_view key, const Block& block) {
      auto* data = static_cast<float*>(state.find(key));
      return data == nullptr ? nullptr : data + block.first_row;
    };
    auto* step = static_cast<std::int64_t*>(state.find("step"));
    for (const Block& block : blocks(subject)) {
      MuonJob& job = add_block(jobs.muon, block, subject, state, constants);
      job.most_gg = rules::kSquaresLimit;  // squares of radial gradients are averaged
      job.scale = rules::muon_scale(constants, block.fan_out, block.fan_in);
      job.own = {over_rows("radius", block), over_rows("direction_norm", block),
                 over_rows("radius_avg", block), over_rows("radius_avg_sq", block), step};
      if (step != nullptr) ++step;
    }
  }
};

}  // namespace

std::shared_ptr<const Rule> make_rule(const MuownOptions& options) {
  return std::make_shared<MuownRule>("muown", options);
}

}  // namespace rode
