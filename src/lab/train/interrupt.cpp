// SPDX-License-Identifier: Apache-2.0
// The handler touches one flag; SA_RESETHAND restores the default action by itself.
#include "lab/train/interrupt.h"

#include <array>
#include <csignal>

namespace rode::lab {
namespace {

constexpr std::array<int, 2> kSignals = {SIGINT, SIGTERM};
volatile std::sig_atomic_t requested_flag = 0;
std::array<struct sigaction, kSignals.size()> previous_actions;

void handle(int) { requested_flag = 1; }

}  // namespace

InterruptGuard::InterruptGuard() {
  requested_flag = 0;
  struct sigaction action = {};
  action.sa_handler = handle;
  action.sa_flags = static_cast<int>(SA_RESETHAND) | SA_RESTART;
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

bool InterruptGuard::requested() { return requested_flag != 0; }

}  // namespace rode::lab
