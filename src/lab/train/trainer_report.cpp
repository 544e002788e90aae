// SPDX-License-Identifier: Apache-2.0
// What a run reports: progress, its result, its divergence.
#include <string>

#include "lab/train/trainer_impl.h"
#include "rode/optimizer.h"

namespace rode::lab {

Progress Trainer::Impl::progress() const {
  Progress progress{.step = state.step, .total = plan.total, .loss = loss, .rates = rates};
  if (state.evaluated >= 0) progress.eval_loss = state.last_loss;
  if (state.evaluated >= 0 && !options.task.is_language()) {
    progress.eval_accuracy = state.last_accuracy;
  }
  progress.unit = options.task.is_language() ? "tokens" : "images";
  if (const auto speed = pace.steps_per_second()) {
    progress.units_per_second =
        *speed * static_cast<double>(options.task.train.batch * batches.units_per_row());
  }
  progress.seconds_left = pace.seconds_for(plan.total - state.step);
  return progress;
}

void Trainer::Impl::diverge(std::int64_t step, const std::string& what) {
  state.step = step;
  if (log) log->diverged(step, what);
  if (log) log->sync();
  Json json = result("diverged");
  json["what"] = what;
  if (ranks.leads()) folder.write_result(json);
  const std::string last =
      saved < 0 ? "there is no checkpoint yet"
                : "the last good checkpoint is '" + folder.checkpoint(saved).string() + "'";
  throw Error(ErrorKind::non_finite, "train",
              "step " + std::to_string(state.step) + ": " + what + "; expected finite numbers; " +
                  last +
                  "; lower the rates with --set lr=... or lengthen the warm-up, with --overwrite "
                  "or another --out");
}

Json Trainer::Impl::result(const char* status) {
  const double seconds = log ? log->seconds() : 0;
  const auto units = static_cast<std::int64_t>(state.data.taken) * batches.units_per_row();
  Json json = {{"status", status},
               {"task", options.task.name},
               {"optimizer", spec.name},
               {"seed", options.seed},
               {"steps", state.step},
               {"units", units},
               {"unit", options.task.is_language() ? "tokens" : "images"},
               {"log_bytes", log ? log->bytes() : 0}};
  if (state.evaluated >= 0) {
    json["final_loss"] = state.last_loss;
    json["best_loss"] = state.best_loss;
    json["best_step"] = state.best_step;
    json["weight_norm"] = session.norms().all;
  }
  if (session.average().count() > 0) {
    json["averaged_steps"] = session.average().count();
  }
  if (session.average().count() > 0 && state.averaged_loss) {
    json["averaged_loss"] = *state.averaged_loss;
    if (!options.task.is_language()) json["averaged_accuracy"] = state.averaged_accuracy;
  }
  if (!options.task.is_language()) {
    json["final_accuracy"] = state.last_accuracy;
    json["best_accuracy"] = state.best_accuracy;
  }
  if (const auto lowest = batches.best_loss()) json["lowest_possible_loss"] = *lowest;
  json["parameters"] = session.parameters();
  session.optimizer().bind();  // a run may end before its first step
  const rode::Optimizer& engine = session.optimizer().engine();
  json["state_bytes"] =
      static_cast<std::int64_t>(ranks.sum({static_cast<double>(engine.state_bytes())})[0]);
  json["workspace_bytes"] = engine.workspace_bytes();
  json["peak_memory_bytes"] = session.peak_bytes();
  if (const auto torch_peak = session.torch_peak_bytes()) json["torch_peak_bytes"] = *torch_peak;
  json["seconds"] = seconds;
  json["units_per_second"] = seconds > 0 ? static_cast<double>(units) / seconds : 0.0;
  json["threads"] = session.threads();
  json["device"] = session.device().str();
  if (!ranks.alone()) {
    json["ranks"] = ranks.count();
    json["collectives"] = ranks.group()->calls();
    json["collective_bytes"] = ranks.group()->bytes();
  }
  if (!warnings.empty()) json["warnings"] = warnings;
  return json;
}

}  // namespace rode::lab
