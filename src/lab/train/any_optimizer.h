// SPDX-License-Identifier: Apache-2.0
// An optimizer of rode::torch by name, with all its rates under one multiplier.
#pragma once

#include <memory>

#include <torch/nn/module.h>

#include "lab/run/rates.h"
#include "rode/method.h"
#include "rode/routing.h"
#include "rode/torch/optimizer.h"

namespace rode::lab {

class AnyOptimizer {
 public:
  virtual ~AnyOptimizer() = default;

  // lr, lr_rho and lr_rest as configured, times `multiplier`; from the next step on.
  virtual void scale_rates(double multiplier) = 0;
  virtual Rates rates() const = 0;  // as they act
  virtual rode::torch::EngineOptimizer& optimizer() = 0;
};

std::unique_ptr<AnyOptimizer> make_optimizer(const ::torch::nn::Module& module,
                                             const Method& method, Route route);

}  // namespace rode::lab
