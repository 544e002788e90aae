// SPDX-License-Identifier: Apache-2.0
// What callers without Torch's headers ask of it: its errors in our words, and whether it has a
// GPU.
#pragma once

#include <functional>
#include <string_view>

namespace rode::lab {

// Runs `work`. What Torch throws, with a stack trace in its text, becomes a rode::Error of one
// line.
void with_torch_errors(std::string_view operation, const std::function<void()>& work);

bool torch_has_cuda();

}  // namespace rode::lab
