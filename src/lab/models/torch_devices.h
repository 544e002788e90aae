// SPDX-License-Identifier: Apache-2.0
// What callers without Torch's headers ask of its devices.
#pragma once

namespace rode::lab {

bool torch_has_cuda();

}  // namespace rode::lab
