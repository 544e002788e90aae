// SPDX-License-Identifier: Apache-2.0
// The names of options structs: that of the optimizer, and those that preset some of its options.
#pragma once

#include <string_view>
#include <vector>

#include "optim/option_schema.h"
#include "optim/rest_rates.h"
#include "rode/optim/list.h"

namespace rode {

// The name of a struct's optimizer. Its presets may exchange state: their keys mean the same.
template <class Options>
std::string_view family_of();
#define RODE_NAME(Class, Options, name, summary) \
  template <>                                    \
  inline std::string_view family_of<Options>() { \
    return name;                                 \
  }
RODE_FOR_EACH_OPTIMIZER(RODE_NAME)
#undef RODE_NAME

template <class Options>
struct Preset {
  const char *name, *summary;
  Options options;
};

// Rates are those selected for the paper's Qwen2-style model.
template <class Options>
std::vector<Preset<Options>> presets_of() {
  return {};
}
template <>
inline std::vector<Preset<RodeOptions>> presets_of() {
  return {{"rode-snr",
           "RODE with the angle damped by the signal-to-noise ratio",
           {.lr = kRodeSnrRates.lr, .lr_rho = 3.698e-5, .snr = true}},
          {"rode-fixed",
           "RODE with every radius held at its initial value",
           {.lr_rho = 0, .radius = Radius::fixed}}};
}
template <>
inline std::vector<Preset<MuonOptions>> presets_of() {
  MuonOptions rms{.lr = kMuonRmsRates.lr, .scale = MuonScale::rms};
  MuonOptions projected = rms;
  projected.constraint = MuonConstraint::normproj;
  return {{"muon-rms", "Muon with the RMS-matched scale", rms},
          {"muon-normproj", "Muon RMS, each matrix rescaled to its initial norm", projected}};
}

// The preset most of whose fixed options are these options', or the optimizer's own name.
template <class Options>
std::string_view name_of(const Options& options, const OptionSchema<Options>& schema) {
  static const std::vector<Preset<Options>> presets = presets_of<Options>();
  std::string_view name = family_of<Options>();
  int most = 0;
  for (const Preset<Options>& preset : presets) {
    const int matching = schema.fixed_settings_of(preset.options, options);
    if (matching > most) {
      most = matching;
      name = preset.name;
    }
  }
  return name;
}

}  // namespace rode
