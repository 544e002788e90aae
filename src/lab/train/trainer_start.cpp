// SPDX-License-Identifier: Apache-2.0
// How a run begins: from nothing, from its last checkpoint, or beyond its end.
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include "lab/task/data_digest.h"
#include "lab/train/environment.h"
#include "lab/train/resume.h"
#include "lab/train/trainer_impl.h"
#include "rode/safetensors.h"

namespace rode::lab {
namespace {

// About a second of the larger models: a wait costs what the host needs to get ahead again.
constexpr std::int64_t kReadOnGpu = 10;

}  // namespace

Trainer::Impl::Impl(const TrainOptions& given, TrainHooks given_hooks, const RunRanks& given_ranks)
    : options(given),
      hooks(std::move(given_hooks)),
      spec(resolve_optimizer(options.task, options.optimizer, options.settings)),
      method(Method::by_name(spec.optimizer, spec.settings)),
      batches(options.task, options.seed, options.data_folder),
      plan(plan_run(options.task, batches.epoch_samples(), options.steps, options.warmup)),
      ranks(agreed_ranks(given_ranks, options, describe_run(options, plan, spec, method))),
      folder(options.out),
      session(options, method, ranks) {
  state.data = batches.position();
  read_interval = session.device().is_cuda() ? kReadOnGpu : 1;
  if (options.read_interval > 0) read_interval = options.read_interval;
  // Norms that are asked for less often than losses are read come with them.
  if (options.log_interval > read_interval) read_interval = options.log_interval;
  if (options.log_interval > 0 && read_interval > 1) {
    session.optimizer().keep_history(static_cast<std::size_t>(read_interval));
  }
  for (const std::string& text : batches.notes()) note(text);
  const std::string repeats = note_of_repeats(options.task, plan, batches.epoch_samples());
  if (!repeats.empty()) note(repeats);
  if (options.task.train.momentum_warmup > 0 && !method.number("momentum")) {
    note("'" + spec.name + "' has no option momentum; momentum_warmup does not act on it");
  }
  if (!ranks.alone() && !session.model().module().buffers().empty()) {
    note(
        "batch normalisation uses the statistics of each rank's own rows, and evaluations and "
        "checkpoints use those of rank 0: the curve differs from that of one process");
  }
  if (ranks.leads()) begin();
}

void Trainer::Impl::begin() {
  Json run = describe_run(options, plan, spec, method);
  if (options.resume && folder.has_run()) {
    begin_in_folder(run);
    return;
  }
  folder.check_start(options.overwrite);
  folder.create();
  take_lock();
  run["environment"] = describe_environment(session.device());
  if (!ranks.alone()) {
    run["environment"]["ranks"] = ranks.count();
    run["environment"]["ranks_backend"] = ranks.group()->backend();
  }
  run["environment"]["data"] = digest_data(options.task, options.data_folder);
  folder.start(run, options.overwrite);
}

void Trainer::Impl::begin_in_folder(const Json& run) {
  const auto extended = folder.extended_from(run);
  if (!extended) {
    folder.continue_run(run, [this](const std::string& text) { note(text); });
    // A run that is done is only read: its folder may be one that cannot be written.
    if (find_finished()) return;
  }
  take_lock();
  if (extended && folder.extended_from(run) == extended) {
    // Before the result is given up: an error here has changed nothing.
    (void)SafetensorsFile::open(folder.checkpoint(*extended));
    folder.extend(run);
  }
  folder.continue_run(run);  // another process may have replaced it until now
  folder.remove_temporaries();
  load();
  if (extended) {
    const RunPlan before = plan_run(options.task, batches.epoch_samples(), *extended, plan.warmup);
    note("the finished run of " + std::to_string(*extended) + " steps is extended to " +
         std::to_string(plan.total) + ": from here on the schedule is that of " +
         std::to_string(plan.total) + " steps, whose multiplier is now " +
         std::to_string(plan.multiplier(state.step)) +
         "; at the last step of the finished run it was " +
         std::to_string(before.multiplier(*extended - 1)));
  }
  const Json was = folder.environment();
  if (was.contains("data") && was["data"] != digest_data(options.task, options.data_folder)) {
    note("the data have changed since the run began: their digests differ from those in run.json");
  }
}

bool Trainer::Impl::find_finished() {
  finished = folder.result();
  if (finished && finished->value("status", "") != "finished") finished.reset();
  return finished.has_value();
}

void Trainer::Impl::take_lock() {
  lock.emplace(folder.path());
  if (!lock->held()) {
    note("the file system of '" + folder.path().string() +
         "' does not support locks; nothing stops a second process from using the folder");
  }
}

void Trainer::Impl::load() {
  const auto found = resume(folder, {.data = state.data, .total = plan.total, .seed = options.seed},
                            session, [this](const std::string& text) { note(text); });
  if (found) take_over(*found);
}

// The session has it already.
void Trainer::Impl::take_over(const TrainState& found) {
  state = found;
  // Those of the old end of a run that was extended: they may count steps before the new tail. By
  // the folder, since the process that extended it may have been killed before it saved anything.
  if (!plan.averages_at(state.step) || state.step <= folder.last_extension()) {
    session.average().restart(session.model(), 0);
    state.averaged_loss.reset();
  }
  resumed = true;
  saved = state.step;
  saved_evaluation = state.evaluated;
}

}  // namespace rode::lab
