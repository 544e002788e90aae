// SPDX-License-Identifier: Apache-2.0
// Refusals before a process is started.
#include "lab/run/rank_rules.h"

#include <fmt/format.h>

#include "rode/error.h"

namespace rode::lab {

void require_equal_rows(const Task& task, int ranks) {
  const std::int64_t batch = task.train.batch;
  if (batch % ranks == 0) return;
  std::int64_t fewer = ranks;
  while (batch % fewer != 0) --fewer;
  const std::int64_t next = (batch / ranks + 1) * ranks;
  throw Error(
      ErrorKind::invalid_argument, "train",
      fmt::format("a batch of {} rows cannot be divided between {} ranks; expected a multiple of "
                  "the number of ranks; use --ranks {}, or another batch with --set train.batch={}",
                  batch, ranks, fewer, next));
}

}  // namespace rode::lab
