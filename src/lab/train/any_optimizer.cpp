// SPDX-License-Identifier: Apache-2.0
// One small class a kind of options, chosen by what the method holds.
#include "lab/train/any_optimizer.h"

#include <vector>

#include "rode/error.h"
#include "rode/torch.h"

namespace rode::lab {
namespace {

template <class E>
class Typed final : public AnyOptimizer {
 public:
  Typed(const ::torch::nn::Module& module, const E& options, Route route)
      : optimizer_(module, settings(options, route)) {
    for (std::size_t g = 0; g < optimizer_.param_groups().size(); ++g) {
      base_.push_back(optimizer_.options(g));  // the group's own: what was unset is filled now
    }
  }

  void scale_rates(double multiplier) override {
    for (std::size_t g = 0; g < base_.size(); ++g) {
      auto& now = optimizer_.options(g);
      const E& base = base_[g];
      now.lr = base.lr * multiplier;
      scale(now.lr_rest, base.lr_rest, multiplier);
      if constexpr (requires { base.lr_rho; }) scale(now.lr_rho, base.lr_rho, multiplier);
    }
  }

  Rates rates() const override {
    const E& now = const_cast<rode::torch::OptimizerOf<E>&>(optimizer_).options(0);
    Rates rates{.lr = now.lr, .lr_rest = now.lr_rest};
    if constexpr (requires { now.lr_rho; }) rates.lr_rho = now.lr_rho;
    return rates;
  }

  rode::torch::EngineOptimizer& optimizer() override { return optimizer_; }

 private:
  static rode::torch::Options<E> settings(const E& options, Route route) {
    rode::torch::Options<E> out(options);
    out.route = route;
    out.couple_lr_rho = false;  // the schedule here moves lr_rho itself
    return out;
  }
  static void scale(double& now, double base, double multiplier) { now = base * multiplier; }
  static void scale(std::optional<double>& now, const std::optional<double>& base,
                    double multiplier) {
    if (base) now = *base * multiplier;
  }

  rode::torch::OptimizerOf<E> optimizer_;
  std::vector<E> base_;
};

}  // namespace

std::unique_ptr<AnyOptimizer> make_optimizer(const ::torch::nn::Module& module,
                                             const Method& method, Route route) {
  std::unique_ptr<AnyOptimizer> made;
  const bool found = any_optimizer([&]<class Options>() {
    const Options* options = method.get_if<Options>();
    if (options != nullptr) made = std::make_unique<Typed<Options>>(module, *options, route);
    return options != nullptr;
  });
  if (!found) {
    throw Error(ErrorKind::unsupported, "train",
                "optimizer '" + std::string(method.name()) + "' has no LibTorch class");
  }
  return made;
}

}  // namespace rode::lab
