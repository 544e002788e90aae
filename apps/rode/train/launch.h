// SPDX-License-Identifier: Apache-2.0
// `rode train --ranks N`: this program N times, one process per rank.
#pragma once

#include <cstdint>
#include <exception>
#include <optional>

namespace rode::cli {

// Of a process that RANK and WORLD_SIZE of its environment name: torchrun's, or launch_ranks's.
struct RankPlace {
  int rank = 0;
  int size = 1;
};
// Nothing if there is one process. Throws UsageError where the two are not numbers.
std::optional<RankPlace> rank_place();

struct LaunchOptions {
  int ranks = 1;
  int threads = 0;           // 0: the cores divided between the ranks
  std::int64_t timeout = 0;  // seconds of a wait for another rank
};
// Starts the ranks with this process's own words and waits for all of them. A signal is handed on,
// for them to save and end. Where one fails, those that do not end within a minute, or the timeout
// if that is shorter, are killed. Throws AlreadyTold where not all have ended well.
void launch_ranks(const LaunchOptions& options);

// On a rank that fails, so that the launcher does not repeat it.
void tell_launcher(const std::exception& error);

}  // namespace rode::cli
