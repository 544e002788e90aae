// SPDX-License-Identifier: Apache-2.0
// From the newest checkpoint to the oldest, until one can be used.
#include "lab/train/resume.h"

#include <vector>

#include <fmt/format.h>

#include "core/file_io.h"
#include "rode/error.h"

namespace rode::lab {
namespace {

// A file may be whole and yet not be the checkpoint that its name says.
void check_place(const TrainState& state, std::int64_t step, const ResumeFrom& from,
                 const std::filesystem::path& path) {
  const auto refuse = [&](std::string_view what) {
    return Error(ErrorKind::state_mismatch, "checkpoint",
                 fmt::format("file '{}': {}", printable(path.string()), what));
  };
  if (state.step != step || step > from.total) {
    throw refuse(
        fmt::format("was saved after step {}; expected {}, as its name says, of {}; "
                    "restore the file of that name",
                    state.step, step, from.total));
  }
  if (state.data.seed != from.data.seed || state.data.size != from.data.size) {
    throw refuse(
        fmt::format("its position belongs to {} samples with seed {}, the data at hand to "
                    "{} samples with seed {}; resume with the same data, sequence length "
                    "and seed",
                    state.data.size, state.data.seed, from.data.size, from.data.seed));
  }
}

TrainState load(const RunFolder& folder, std::int64_t step, const ResumeFrom& from,
                Session& session, const Note& note) {
  const auto path = folder.checkpoint(step);
  LoadedCheckpoint loaded = load_checkpoint(path, session.model(), session.optimizer().optimizer(),
                                            session.device(), from.seed);
  check_place(loaded.state, step, from, path);
  if (!loaded.checksum_note.empty()) note(loaded.checksum_note);
  for (const std::string& generator : loaded.seeded) {
    note("the checkpoint has no state of the generator of '" + generator +
         "'; it begins anew from the seed and the step");
  }
  return loaded.state;
}

}  // namespace

std::optional<TrainState> resume(const RunFolder& folder, const ResumeFrom& from, Session& session,
                                 const Note& note) {
  const std::vector<std::int64_t> steps = folder.checkpoints();
  std::optional<TrainState> state;
  std::vector<std::int64_t> unusable;
  for (auto step = steps.rbegin(); step != steps.rend() && !state; ++step) {
    try {
      state = load(folder, *step, from, session, note);
    } catch (const Error& error) {
      if (step + 1 == steps.rend()) {
        throw Error(error.kind(), "resume",
                    fmt::format("{}; no checkpoint before it is left; begin the run anew with "
                                "--overwrite or in another --out where it cannot be restored",
                                error.what()));
      }
      note(std::string(error.what()) + "; the checkpoint before it is used");
      unusable.push_back(*step);
    }
  }
  for (const std::int64_t step : unusable) {
    note("the file that could not be used is now '" + folder.set_aside(step).string() + "'");
  }
  return state;
}

}  // namespace rode::lab
