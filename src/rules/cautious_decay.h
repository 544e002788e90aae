// SPDX-License-Identifier: Apache-2.0
// Cautious weight decay: decoupled decay of the elements that the update does not push away from 0.
//
// Chen et al., "Cautious Weight Decay", 2025. With W <- W - u and the decay factor k = 1 - lr *
// weight_decay, element by element:
//   W <- k W - u  where u W >= 0,   W <- W - u  where u W < 0
// So an element whose update is 0 decays.
#pragma once

#include "rules/host_device.h"

namespace rode::rules {

// What the weight w is multiplied by; `update` is what is then subtracted.
template <class T>
RODE_HOST_DEVICE inline T cautious_keep(T keep, T w, T update) {
  return update * w < T{0} ? T{1} : keep;
}

// W' = keep W + step for one element.
template <class T>
RODE_HOST_DEVICE inline T cautious_sum(T keep, T w, T step) {
  return cautious_keep(keep, w, -step) * w + step;
}

}  // namespace rode::rules
