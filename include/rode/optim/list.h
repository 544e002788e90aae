// SPDX-License-Identifier: Apache-2.0
// The list of optimizers: registry, adapters and documentation are expanded from it.
#pragma once

#include "rode/optim/adafactor.h"
#include "rode/optim/adamw.h"
#include "rode/optim/ademamix.h"
#include "rode/optim/lion.h"
#include "rode/optim/mars_m.h"
#include "rode/optim/muon.h"
#include "rode/optim/muown.h"
#include "rode/optim/rode.h"
#include "rode/optim/sgd.h"
#include "rode/optim/soap.h"

// X(class in LibTorch and Python, options struct, name, summary), in the order of the
// documentation. Names that preset some options of a struct (rode-snr, muon-rms, ...) are in
// src/optim/presets.h.
#define RODE_FOR_EACH_OPTIMIZER(X)                                                         \
  X(RODE, RodeOptions, "rode",                                                             \
    "radius by a scalar rule, direction by conditioned tangent momentum")                  \
  X(Muon, MuonOptions, "muon", "orthogonalised momentum, original scale")                  \
  X(Muown, MuownOptions, "muown", "Muon on the directions of rows, Adam on their lengths") \
  X(SOAP, SoapOptions, "soap", "Adam in the eigenbasis of Shampoo's factors")              \
  X(MARSM, MarsMOptions, "mars-m", "Muon on a variance-reduced gradient")                  \
  X(AdEMAMix, AdEMAMixOptions, "ademamix", "Adam with a second, slow momentum")            \
  X(Adafactor, AdafactorOptions, "adafactor", "factored second moments, explicit rate")    \
  X(AdamW, AdamWOptions, "adamw", "Adam with decoupled weight decay")                      \
  X(Lion, LionOptions, "lion", "sign of an interpolated momentum, decoupled weight decay") \
  X(SGD, SgdOptions, "sgd", "momentum, coupled weight decay")

namespace rode {

// Calls f.operator()<Options>() for every options struct until one returns true.
template <class F>
bool any_optimizer(F&& f) {
#define RODE_TRY(Class, Options, name, summary) || f.template operator()<Options>()
  return false RODE_FOR_EACH_OPTIMIZER(RODE_TRY);
#undef RODE_TRY
}

}  // namespace rode
