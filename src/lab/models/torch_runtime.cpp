// SPDX-License-Identifier: Apache-2.0
// Torch's errors without their stack traces, and Torch's devices.
#include "lab/models/torch_runtime.h"

#include <string>

#include <ATen/Context.h>
#include <c10/util/Exception.h>

#include "rode/error.h"

namespace rode::lab {
namespace {

// The first line: what follows it are frames and advice for Torch's developers.
std::string first_line(const char* text) {
  const std::string all = text;
  return all.substr(0, all.find('\n'));
}

bool is_about_memory(const c10::Error& error, const std::string& text) {
  return dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||
         text.find("can't allocate memory") != std::string::npos ||
         text.find("out of memory") != std::string::npos;
}

}  // namespace

void with_torch_errors(std::string_view operation, const std::function<void()>& work) {
  try {
    work();
  } catch (const c10::Error& error) {
    const std::string text = first_line(error.what_without_backtrace());
    const char* const remedy =
        is_about_memory(error, text)
            ? "; out of memory: choose a smaller model, a shorter sequence or more parts per batch "
              "(accumulate), or a machine with more memory"
            : "; LibTorch refused the operation: check the task's sizes and the device";
    throw Error(ErrorKind::unsupported, operation, text + remedy);
  }
}

bool torch_has_cuda() { return at::hasCUDA(); }

}  // namespace rode::lab
