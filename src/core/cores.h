// SPDX-License-Identifier: Apache-2.0
// The cores that this process may use.
#pragma once

#include <algorithm>
#include <thread>

#include <sched.h>

namespace rode {

// At least 1. A container or `taskset` may leave fewer than the machine has.
inline int available_cores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) == 0) {
    return std::max(1, CPU_COUNT(&allowed));
  }
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace rode
