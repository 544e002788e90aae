// SPDX-License-Identifier: Apache-2.0
// From the newest checkpoint to the oldest, until one can be used.
#include "lab/train/resume.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "rode/error.h"

namespace rode::lab {
namespace {

// A file may be whole and yet not be the checkpoint that its name says.
void check_place(const TrainState& state, std::int64_t step, const ResumeFrom& from,
                 const std::filesystem::path& path) {
  const auto refuse = [&](const std::string& what) {
    return Error(ErrorKind::state_mismatch, "checkpoint", "file '" + path.string() + "': " + what);
  };
  const auto text = [](auto number) { return std::to_string(number); };
  if (state.step != step || step > from.total) {
    throw refuse("was saved after step " + text(state.step) + "; expected " + text(step) +
                 ", as its name says, of " + text(from.total) + "; restore the file of that name");
  }
  if (state.data.seed != from.data.seed || state.data.size != from.data.size) {
    throw refuse("its position belongs to " + text(state.data.size) + " samples with seed " +
                 text(state.data.seed) + ", the current data to " + text(from.data.size) +
                 " samples with seed " + text(from.data.seed) +
                 "; resume with the same data, sequence length and seed");
  }
}

TrainState load(const RunFolder& folder, std::int64_t step, const ResumeFrom& from,
                Session& session, const Note& note) {
  const auto path = folder.checkpoint(step);
  LoadedCheckpoint loaded = load_checkpoint(path, session.model(), session.optimizer(),
                                            session.device(), from.seed, session.average());
  check_place(loaded.state, step, from, path);
  if (!loaded.checksum_note.empty()) note(loaded.checksum_note);
  for (const std::string& generator : loaded.seeded) {
    note("the checkpoint has no state of the generator of '" + generator +
         "'; it restarts from the seed and the step");
  }
  return loaded.state;
}

}  // namespace

TrainState resume_at(const RunFolder& folder, std::int64_t step, const ResumeFrom& from,
                     Session& session) {
  return load(folder, step, from, session, [](const std::string&) {});
}

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
                    std::string(error.what()) +
                        "; there is no earlier checkpoint; if the file cannot be restored, start "
                        "the run again with --overwrite or another --out");
      }
      note(std::string(error.what()) + "; using the checkpoint before it");
      unusable.push_back(*step);
    }
  }
  for (const std::int64_t step : unusable) {
    // One that could not even be opened may be good: of another owner, on a disk that is away.
    const auto path = folder.checkpoint(step);
    if (std::filesystem::is_regular_file(path) && !std::ifstream(path)) continue;
    try {
      const auto aside = folder.set_aside(step);
      if (aside) note("the file that could not be used is now '" + aside->string() + "'");
    } catch (const Error& error) {
      note(std::string(error.what()) + "; the file that could not be used keeps its name");
    }
  }
  return state;
}

}  // namespace rode::lab
