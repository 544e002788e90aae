// SPDX-License-Identifier: Apache-2.0
// Torch's devices.
#include "lab/models/torch_devices.h"

#include <ATen/Context.h>

namespace rode::lab {

bool torch_has_cuda() { return at::hasCUDA(); }

}  // namespace rode::lab
