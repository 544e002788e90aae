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

// What the variants of the paper have in common. Their rates are left unset: they follow these
// options, so that the same options have the same rates under every name.
inline RodeOptions published_rode() {
  return {
      .scale = RodeScale::kernel, .radius = Radius::learned, .radius_pull = 0, .nesterov = false};
}

template <class Options>
std::vector<Preset<Options>> presets_of() {
  return {};
}
template <>
inline std::vector<Preset<RodeOptions>> presets_of() {
  RodeOptions snr = published_rode(), fixed = published_rode();
  snr.snr = true;
  fixed.radius = Radius::fixed;
  return {{"rode-snr", "RODE-SNR as published: the angle damped by the signal-to-noise ratio", snr},
          {"rode-fixed", "RODE as published with every radius held at its initial value", fixed},
          {"rode-paper", "RODE as published: Algorithm 1 with its rates", RodeOptions::paper()}};
}
template <>
inline std::vector<Preset<MuonOptions>> presets_of() {
  const MuonOptions rms{.scale = MuonScale::rms};
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
