// SPDX-License-Identifier: Apache-2.0
// SGD's options and the constants of its rule.
#include "rode/optim/sgd.h"

#include "optim/element_optimizer.h"

namespace rode {
namespace {

class SgdRule final : public ElementOptimizer<SgdRule, SgdOptions, rules::Sgd> {
 public:
  using ElementOptimizer::ElementOptimizer;

  static const OptionSchema<SgdOptions>& schema() {
    using O = SgdOptions;
    static const OptionSchema<O> table([] {
      std::vector<OptionField<O>> f;
      append_rates(f, "coupled");
      f.push_back(
          number("momentum", &O::momentum, unit_interval(), "decay of the momentum buffer"));
      f.push_back(boolean("nesterov", &O::nesterov, "step along d + momentum * B instead of B"));
      f.push_back(boolean("maximize", &O::maximize, "maximize the objective: negate the gradient"));
      append_rates_of_rest(f, "coupled");
      append_storage(f);
      return f;
    }());
    return table;
  }

  static rules::Sgd::Constants constants(const SgdOptions& o, double lr, double weight_decay) {
    return {lr, weight_decay, o.momentum, o.nesterov, o.maximize};
  }
};

}  // namespace

std::shared_ptr<const Rule> make_rule(const SgdOptions& options) {
  return std::make_shared<SgdRule>("sgd", options);
}

}  // namespace rode
