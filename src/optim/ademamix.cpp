// SPDX-License-Identifier: Apache-2.0
// AdEMAMix's options and the constants of its rule.
#include "rode/optim/ademamix.h"

#include "optim/element_optimizer.h"

namespace rode {
namespace {

class AdEMAMixRule final : public ElementOptimizer<AdEMAMixRule, AdEMAMixOptions, rules::AdEMAMix> {
 public:
  using ElementOptimizer::ElementOptimizer;

  static const OptionSchema<AdEMAMixOptions>& schema() {
    using O = AdEMAMixOptions;
    static const OptionSchema<O> table([] {
      std::vector<OptionField<O>> f;
      append_rates(f, "decoupled");
      f.push_back(numbers("betas", &O::betas, unit_interval(),
                          "decay of fast momentum, second moment and slow momentum"));
      f.push_back(number("alpha", &O::alpha, at_least(0), "weight of the slow momentum"));
      f.push_back(number("eps", &O::eps, more_than(0), "added to the corrected sqrt(v)"));
      f.push_back(integer("warmup_steps", &O::warmup_steps, 0, 1000000000,
                          "warm-up of alpha and the slow average; 0: off"));
      append_rates_of_rest(f, "decoupled");
      append_storage(f);
      return f;
    }());
    return table;
  }

  static rules::AdEMAMix::Constants constants(const AdEMAMixOptions& o, double lr,
                                              double weight_decay) {
    return {lr, weight_decay, o.betas[0], o.betas[1], o.betas[2], o.alpha, o.eps, o.warmup_steps};
  }
};

}  // namespace

std::shared_ptr<const Rule> make_rule(const AdEMAMixOptions& options) {
  return std::make_shared<AdEMAMixRule>("ademamix", options);
}

}  // namespace rode
