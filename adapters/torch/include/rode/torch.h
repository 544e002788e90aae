// SPDX-License-Identifier: Apache-2.0
// The optimizers for LibTorch: torch::optim::Optimizers over the engine.
//
//   rode::torch::RODE optimizer(*model, rode::RodeOptions{.lr = 1e-3});
//   loss.backward();
//   optimizer.step();
#pragma once

#include "rode/torch/optimizer.h"
#include "rode/torch/options.h"
#include "rode/torch/routing.h"

namespace rode::torch {

using RODE = OptimizerOf<rode::RodeOptions>;
using Muon = OptimizerOf<rode::MuonOptions>;
using SOAP = OptimizerOf<rode::SoapOptions>;
using MARSM = OptimizerOf<rode::MarsMOptions>;
using AdEMAMix = OptimizerOf<rode::AdEMAMixOptions>;
using Adafactor = OptimizerOf<rode::AdafactorOptions>;
using AdamW = OptimizerOf<rode::AdamWOptions>;
using SGD = OptimizerOf<rode::SgdOptions>;

}  // namespace rode::torch
