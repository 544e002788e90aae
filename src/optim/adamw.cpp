// SPDX-License-Identifier: Apache-2.0
// AdamW's options and the constants of its rule.
#include "rode/optim/adamw.h"

#include "optim/element_optimizer.h"

namespace rode {
namespace {

class AdamWRule final : public ElementOptimizer<AdamWRule, AdamWOptions, rules::AdamW> {
 public:
  using ElementOptimizer::ElementOptimizer;

  static const OptionSchema<AdamWOptions>& schema() {
    using O = AdamWOptions;
    static const OptionSchema<O> table([] {
      std::vector<OptionField<O>> f;
      append_rates(f, "decoupled");
      f.push_back(numbers("betas", &O::betas, unit_interval(), "decay of the two averages"));
      f.push_back(number("eps", &O::eps, more_than(0), "added to the corrected sqrt(v)"));
      f.push_back(boolean("maximize", &O::maximize, "maximize the objective: negate the gradient"));
      append_rates_of_rest(f, "decoupled");
      append_cautious_decay(f, "");
      append_storage(f, true);
      return f;
    }());
    return table;
  }

  static rules::AdamW::Constants constants(const AdamWOptions& o, double lr, double weight_decay) {
    return {
        lr, weight_decay, o.betas[0], o.betas[1], o.eps, o.maximize ? -1.0 : 1.0, o.cautious_decay};
  }
};

}  // namespace

std::shared_ptr<const Rule> make_rule(const AdamWOptions& options) {
  return std::make_shared<AdamWRule>("adamw", options);
}

}  // namespace rode
