// SPDX-License-Identifier: Apache-2.0
// Ctrl-C as a question that the training loop asks between the parts of its work.
#pragma once

namespace rode::lab {

// While one lives, the first SIGINT or SIGTERM only sets a flag; the second one, of either kind,
// ends the process at once. At most one at a time.
class InterruptGuard {
 public:
  InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;
  ~InterruptGuard();

  static bool requested();
};

}  // namespace rode::lab
