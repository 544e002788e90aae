// SPDX-License-Identifier: Apache-2.0
// Lion's options and the constants of its rule.
#include "rode/optim/lion.h"

#include "optim/element_optimizer.h"

namespace rode {
namespace {

class LionRule final : public ElementOptimizer<LionRule, LionOptions, rules::Lion> {
 public:
  using ElementOptimizer::ElementOptimizer;

  static const OptionSchema<LionOptions>& schema() {
    using O = LionOptions;
    static const OptionSchema<O> table([] {
      std::vector<OptionField<O>> f;
      append_rates(f, "decoupled");
      f.push_back(numbers("betas", &O::betas, unit_interval(),
                          "weight of the momentum in the update, and decay of the momentum"));
      append_rates_of_rest(f, "decoupled");
      append_cautious_decay(f, "");
      append_storage(f);
      return f;
    }());
    return table;
  }

  static rules::Lion::Constants constants(const LionOptions& o, double lr, double weight_decay) {
    return {lr, weight_decay, o.betas[0], o.betas[1], o.cautious_decay};
  }
};

}  // namespace

std::shared_ptr<const Rule> make_rule(const LionOptions& options) {
  return std::make_shared<LionRule>("lion", options);
}

}  // namespace rode
