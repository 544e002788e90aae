// SPDX-License-Identifier: Apache-2.0
// The checkpoint from which a run continues: the newest that is whole and belongs to it.
#pragma once

#include <cstdint>
#include <optional>

#include "lab/run/folder.h"
#include "lab/train/checkpoint.h"
#include "lab/train/session.h"

namespace rode::lab {

// What every checkpoint of a run agrees with.
struct ResumeFrom {
  StreamPosition data;     // of the data at hand: its seed and size
  std::int64_t total = 0;  // steps of the run
  std::uint64_t seed = 0;
};

// Loads the newest checkpoint that can be used into the session; nothing if there is none at
// all. Files appear whole or not at all, so that an older one is needed only where a disk has
// failed: that is reported to `note`, whatever is wrong with the newer. Those are renamed once one
// is loaded: as the newest they would make the good ones the first to be removed. Throws what is
// wrong with the last one where none can be used, and has then changed no file.
std::optional<TrainState> resume(const RunFolder& folder, const ResumeFrom& from, Session& session,
                                 const Note& note);

// The checkpoint of that step, which another rank has chosen so.
TrainState resume_at(const RunFolder& folder, std::int64_t step, const ResumeFrom& from,
                     Session& session);

}  // namespace rode::lab
