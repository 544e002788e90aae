// SPDX-License-Identifier: Apache-2.0
// The handler touches one flag; where it was set already, the signal's own action follows.
#include "lab/run/interrupt.h"

#include <array>
#include <atomic>
#include <csignal>

namespace rode::lab {
namespace {

constexpr std::array<int, 2> kSignals = {SIGINT, SIGTERM};
std::atomic<bool> requested_flag = false;
static_assert(std::atomic<bool>::is_always_lock_free);  // else not for a handler
std::array<struct sigaction, kSignals.size()> previous_actions;

// One flag for both signals: a second one of either kind ends the process. Raised again it waits
// until the handler is left.
void handle(int number) {
  if (!requested_flag.exchange(true)) return;
  std::signal(number, SIG_DFL);
  std::raise(number);
}

}  // namespace

InterruptGuard::InterruptGuard() {
  requested_flag = false;
  struct sigaction action = {};
  action.sa_handler = handle;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    ::sigaction(kSignals[i], &action, &previous_actions[i]);
  }
}

InterruptGuard::~InterruptGuard() {
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    ::sigaction(kSignals[i], &previous_actions[i], nullptr);
  }
}

bool InterruptGuard::requested() { return requested_flag; }

}  // namespace rode::lab
