// SPDX-License-Identifier: Apache-2.0
// Rate and decay of the rest where they are not given: decided here for every optimizer.
//
// One rule for everything: the rest has the rate and the decay of the matrices. A matrix optimizer,
// which leaves the rest to AdamW, scales its default lr_rest by lr / default lr: whoever gives one
// rate means one rate, and lr = 0 turns no matrix and leaves the rest where it is.
#pragma once

#include <algorithm>
#include <limits>

#include "rode/optim/mars_m.h"
#include "rode/optim/muon.h"
#include "rode/optim/muown.h"
#include "rode/optim/rode.h"
#include "rode/optim/soap.h"

namespace rode {

// A matrix optimizer's default rates, which belong together.
struct DefaultRates {
  double lr, lr_rest;
};

// Those selected for the paper's Qwen2-style model.
constexpr DefaultRates kRodeRates{1.206e-3, 2.915e-3};
constexpr DefaultRates kRodeSnrRates{4.544e-3, 2.974e-3};
constexpr DefaultRates kMuonRates{2.257e-2, 2.897e-3};
constexpr DefaultRates kMuonRmsRates{5.160e-3, 2.913e-3};
// The recipe's: an angle per step that suits widths of 32 to 768 (docs/which.md). The damping of
// snr is made up for by about as much as in the paper's rates.
constexpr DefaultRates kRecipeRates{5e-2, 2.915e-3};
constexpr DefaultRates kRecipeSnrRates{0.2, 2.974e-3};

inline DefaultRates default_rates(const RodeOptions& o) {
  if (o.scale == RodeScale::angle) return o.snr ? kRecipeSnrRates : kRecipeRates;
  return o.snr ? kRodeSnrRates : kRodeRates;
}
inline DefaultRates default_rates(const MuonOptions& o) {
  return o.scale == MuonScale::rms ? kMuonRmsRates : kMuonRates;
}
inline DefaultRates default_rates(const MuownOptions&) {
  return {MuownOptions{}.lr, MuownOptions{}.lr};  // one rate for everything
}
inline DefaultRates default_rates(const SoapOptions&) { return {SoapOptions{}.lr, 2.591e-3}; }
inline DefaultRates default_rates(const MarsMOptions&) { return {MarsMOptions{}.lr, 2.693e-3}; }

template <class Options>
concept LeavesRestToAdamW = requires(const Options& o) { o.betas_rest; };

// The rate of the matrices; the defaults of RODE and Muon follow other options.
template <class Options>
double matrix_lr(const Options& o) {
  if constexpr (requires { o.lr.value_or(0.0); }) {
    return o.lr.value_or(default_rates(o).lr);
  } else {
    return o.lr;
  }
}

template <class Options>
double rest_lr(const Options& o) {
  if (o.lr_rest) return *o.lr_rest;
  if constexpr (LeavesRestToAdamW<Options>) {
    const DefaultRates own = default_rates(o);
    // Not beyond fp32: an error would name an option that nobody has set.
    constexpr double most = std::numeric_limits<float>::max();
    return std::min(own.lr_rest * (matrix_lr(o) / own.lr), most);
  } else {
    return o.lr;
  }
}

template <class Options>
double rest_weight_decay(const Options& o) {
  if constexpr (LeavesRestToAdamW<Options>) {
    return o.weight_decay_rest;
  } else {
    return o.weight_decay_rest.value_or(o.weight_decay);
  }
}

}  // namespace rode
