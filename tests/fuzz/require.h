// SPDX-License-Identifier: Apache-2.0
// What a fuzz target requires of every input.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "rode/error.h"

namespace fuzz {

inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz: %s\n", what);
  std::abort();
}

// Whether `work` ends without an error. Only rode::Error may be thrown, with the operation in front
// and not flooded by the input; anything else reaches the driver and is a crash.
template <class Work>
bool succeeds(Work&& work) {
  try {
    work();
    return true;
  } catch (const rode::Error& error) {
    const std::string_view text = error.what();
    require(text.starts_with("["), "a message without its operation");
    require(text.size() < 2000, "the input floods the message");
    return false;
  }
}

}  // namespace fuzz
