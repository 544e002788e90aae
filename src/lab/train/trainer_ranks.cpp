// SPDX-License-Identifier: Apache-2.0
// Where the ranks of a run agree: how it begins, why it ends, what a step did. With one process
// each of these is what that process knows.
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "lab/train/resume.h"
#include "lab/train/trainer_impl.h"

namespace rode::lab {

// False where rank 0 has found nothing left to do, on the others. They load the checkpoint that it
// has chosen, from the same folder.
bool Trainer::Impl::follow_leader() {
  if (ranks.alone()) return true;
  const Json begun = Json::parse(ranks.from_leader(
      Json{{"finished", finished.has_value()}, {"step", resumed ? state.step : -1}}.dump()));
  if (begun.at("finished").get<bool>()) return ranks.leads();
  const std::int64_t step = begun.at("step");
  if (!ranks.leads() && step >= 0) {
    take_over(resume_at(folder, step,
                        {.data = state.data, .total = plan.total, .seed = options.seed}, session));
  }
  // They are alike by seed and file; after this, whatever chips the ranks have.
  session.synchronize_ranks();
  return true;
}

// What was not finite where a step failed, on any rank. A rank whose own part of a step was good
// learns only that another's was not.
std::optional<std::string> Trainer::Impl::divergence(const Error& error) const {
  const bool own = error.kind() == ErrorKind::non_finite;
  std::optional<std::string> found;
  if (own) found = error.what();
  // Errors of the group itself: the other ranks cannot be asked.
  const bool of_step = std::string_view(error.what()).starts_with("[step]");
  if (ranks.alone() || (error.kind() == ErrorKind::process_group && !of_step)) return found;
  try {
    for (const std::string& text : ranks.tell(found.value_or(""))) {
      if (!text.empty()) return text;
    }
  } catch (const Error&) {  // the first error says more
  }
  return found;
}

// What the device refused of the steps that were not waited for; on the CPU step() has thrown it.
std::string Trainer::Impl::refused_step() {
  std::string refused;
  try {
    session.check();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::non_finite) throw;
    refused = error.what();
  }
  if (session.device().is_cpu()) return refused;
  for (std::string& text : ranks.tell(refused)) {
    if (!text.empty()) return std::move(text);
  }
  return refused;
}

// Each rank has those of the parameters that it steps.
void Trainer::Impl::join_diagnostics() {
  if (ranks.alone()) return;
  std::vector<StepDiagnostics> steps;
  std::vector<StepRecord*> records;
  for (StepRecord& record : waiting) {
    if (!record.global) continue;
    steps.push_back({record.step, *record.global, std::move(record.matrices)});
    records.push_back(&record);
  }
  ranks.join(steps, session.parameter_names());
  for (std::size_t i = 0; i < records.size(); ++i) {
    records[i]->global = steps[i].global;
    records[i]->matrices = std::move(steps[i].matrices);
  }
}

}  // namespace rode::lab
