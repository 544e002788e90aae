// SPDX-License-Identifier: Apache-2.0
// The optimizers for LibTorch: torch::optim::Optimizers over the engine.
//
//   rode::torch::RODE optimizer(*model, rode::RodeOptions{.lr = 3e-2});
//   loss.backward();
//   optimizer.step();
#pragma once

#include "rode/torch/optimizer.h"
#include "rode/torch/options.h"
#include "rode/torch/routing.h"

namespace rode::torch {

// RODE, Muon, SOAP, ...: every optimizer of rode/optim/list.h.
#define RODE_NAME_OPTIMIZER(Class, EngineOptions, name, summary) \
  using Class = OptimizerOf<rode::EngineOptions>;
RODE_FOR_EACH_OPTIMIZER(RODE_NAME_OPTIMIZER)
#undef RODE_NAME_OPTIMIZER

}  // namespace rode::torch
