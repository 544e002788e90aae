// SPDX-License-Identifier: Apache-2.0
// The loop: evaluate, save, step; and what ends it early.
#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

#include "core/file_io.h"
#include "lab/train/bf16_speed.h"
#include "lab/train/torch_messages.h"
#include "lab/train/trainer_impl.h"
#include "rode/optimizer.h"

namespace rode::lab {

void Trainer::Impl::save() {
  if (saved == state.step && saved_evaluation == state.evaluated) return;
  settle();
  if (!std::isfinite(session.norms().all)) diverge(state.step, "a weight is not finite");
  // The log first: a checkpoint names a length of it that must be there.
  if (log) log->sync();
  if (log) state.log_bytes = log->bytes();
  save_checkpoint(folder.checkpoint(state.step), session.model(), session.optimizer(),
                  session.device(), state, session.average(), ranks);
  saved = state.step;
  saved_evaluation = state.evaluated;
  if (ranks.leads()) folder.keep_last(options.keep, saved);
}

// Of a lower loss than any before, as from_pretrained opens them. A run that is killed here and
// resumed makes the same evaluation, and the same files, again.
void Trainer::Impl::save_best() {
  if (!options.keep_best || !ranks.leads()) return;
  create_folders(folder.best(), "train");
  save_pretrained(session.model(), folder.best(),
                  std::max<std::int64_t>(1, options.task.data.sequence));
  write_json(folder.best() / "best.json", {{"step", state.step}, {"loss", state.best_loss}});
}

// False where it was asked to stop before the end: nothing is recorded then.
bool Trainer::Impl::evaluate() {
  const std::int64_t samples = batches.evaluation_samples();
  const auto measured = session.evaluate(
      batches, [this] { return stopping(); },
      [this, samples](std::int64_t done) {
        Progress part = progress();
        part.evaluating = {.done = done, .total = samples};
        report(part);
      });
  if (!measured) return false;
  std::optional<Measured> averaged;
  if (session.average().count() > 0) {
    const WeightAverage::Use use(session.average(), session.model());
    averaged = session.evaluate(batches, [this] { return stopping(); }, {});
    if (!averaged) return false;
  }
  if (!std::isfinite(measured->loss)) {
    diverge(state.step, "the validation loss is " + std::to_string(measured->loss));
  }
  norms = session.norms();
  state.evaluated = state.step;
  state.last_loss = measured->loss;
  state.last_accuracy = measured->accuracy.value_or(0);
  state.best_accuracy = std::max(state.best_accuracy, state.last_accuracy);
  if (measured->loss < state.best_loss) {
    state.best_loss = measured->loss;
    state.best_step = state.step;
    save_best();
  }
  if (averaged && !std::isfinite(averaged->loss)) averaged.reset();
  if (averaged) {
    state.averaged_loss = averaged->loss;
    state.averaged_accuracy = averaged->accuracy.value_or(0);
  }
  if (log) {
    log->evaluation({.step = state.step,
                     .loss = measured->loss,
                     .accuracy = measured->accuracy,
                     .best_loss = state.best_loss,
                     .averaged_loss = averaged ? std::optional(averaged->loss) : std::nullopt,
                     .averaged_accuracy = averaged ? averaged->accuracy : std::nullopt,
                     .weight_norm = norms.all,
                     .radii = norms.matrices});
  }
  Progress whole = progress();
  whole.evaluated = true;
  if (log) log->time(state.step, whole.units_per_second.value_or(0));
  report(whole);
  return true;
}

// False where it was asked to stop between two parts: the batch is dropped, and nothing has moved.
bool Trainer::Impl::train_step() {
  const Pace::Clock::time_point start = Pace::Clock::now();
  const Batch batch = batches.next();
  session.begin_step(state.step);
  // Several ranks may have different numbers of parts: they ask between steps alone.
  const auto measured = session.gradients(
      batch, ranks.alone() ? Session::Stop([this] { return stopping(); }) : Session::Stop());
  if (!measured) return false;
  unread.push_back(*measured);
  const double multiplier = plan.multiplier(state.step);
  rates = rates_at(method, multiplier);
  const TrainSpec& train = options.task.train;
  const auto momentum =
      momentum_at(method, state.step, train.momentum_warmup, train.momentum_start);
  if (momentum) session.set_momentum(*momentum);
  waiting.push_back({.step = state.step,
                     .multiplier = multiplier,
                     .lr = rates->lr,
                     .lr_rho = rates->lr_rho,
                     .lr_rest = rates->lr_rest,
                     .momentum = momentum});
  if (read_interval == 1) {
    // Known before anything has moved.
    read_losses();
    const double known = losses.back().loss;
    if (!std::isfinite(known)) diverge(state.step, "the loss is " + std::to_string(known));
  }
  take_step(multiplier);
  ++state.step;
  if (plan.averages_at(state.step)) {
    // A run that was extended has averages of its old end.
    if (state.step == plan.average_from + 1) {
      session.average().restart(session.model(), 0);
      state.averaged_loss.reset();
    }
    session.average().add(session.model());
  }
  state.data = batch.after;
  if (std::ssize(waiting) >= read_interval || plan.evaluates_at(state.step) ||
      plan.saves_at(state.step)) {
    settle();
  }
  pace.add_step(start);
  report(progress());
  return true;
}

void Trainer::Impl::take_step(double multiplier) {
  try {
    session.step(multiplier);
  } catch (const Error& error) {
    const auto what = divergence(error);
    if (!what) throw;
    diverge(state.step, *what);
  }
}

// Every log_interval steps if that is set, and in the last step before an evaluation: logged with
// the step and not with the evaluation after it, since a resumed run may begin between them.
bool Trainer::Impl::logs_matrices(std::int64_t step) const {
  return plan.evaluates_at(step + 1) ||
         (options.log_interval > 0 && step % options.log_interval == 0);
}

// What the engine has kept of the steps that were not waited for. None of them was refused: a run
// does not continue after one.
void Trainer::Impl::read_history() {
  if (options.log_interval == 0 || read_interval == 1) return;
  std::vector<StepDiagnostics> kept = session.optimizer().take_history();
  const std::size_t count = std::min(kept.size(), waiting.size());
  for (std::size_t i = 0; i < count; ++i) {
    StepRecord& record = waiting[waiting.size() - count + i];
    StepDiagnostics& found = kept[kept.size() - count + i];
    if (record.step % options.log_interval != 0) continue;
    record.global = found.global;
    record.matrices = std::move(found.matrices);
  }
}

void Trainer::Impl::read_losses() {
  if (unread.empty()) return;
  for (const Measured& one : session.read(unread)) losses.push_back(one);
  unread.clear();
}

// Reads what the device has of the steps since the last time, and writes their lines. Before every
// evaluation and checkpoint: neither sees weights after a loss that was not finite.
void Trainer::Impl::settle() {
  if (waiting.empty()) return;
  read_losses();
  const std::string refused = refused_step();
  if (refused.empty()) {
    read_history();
    const rode::Optimizer& engine = session.optimizer().engine();
    StepRecord& last = waiting.back();
    last.global = engine.global_diagnostics();
    if (logs_matrices(last.step)) last.matrices = engine.matrix_diagnostics();
    join_diagnostics();
  }
  for (std::size_t i = 0; i < waiting.size(); ++i) {
    StepRecord& record = waiting[i];
    record.loss = losses[i].loss;
    record.accuracy = losses[i].accuracy;
    if (!std::isfinite(record.loss)) {
      diverge(record.step, "the loss is " + std::to_string(record.loss));
    }
    loss = record.loss;
    if (log) log->step(record);
  }
  if (!refused.empty()) diverge(waiting.back().step, refused);
  waiting.clear();
  losses.clear();
}

TrainOutcome Trainer::Impl::run() {
  // Asked again under the lock: another process may have ended while this one began.
  if (options.resume && ranks.leads() && !finished) find_finished();
  if (!follow_leader()) return {TrainStatus::finished, state.step, {}};
  if (options.resume && ranks.leads()) {
    if (finished) {
      note("the run in '" + folder.path().string() + "' is finished; this is its result");
      return {TrainStatus::finished, finished->value("steps", state.step), *finished};
    }
    folder.remove_result();
    if (resumed) note("resumed after step " + std::to_string(state.step));
  }
  if (ranks.leads()) {
    log = std::make_unique<RunLog>(folder, state.log_bytes, state.step, options.tensorboard,
                                   [this](const std::string& text) { note(text); });
  }
  if (session.device().is_cpu()) {
    if (const auto slow = slow_bf16_warning(options.task.train)) warn(*slow);
  }
  batches.begin(state.data);
  pace.begin();
  for (;;) {
    const bool due = plan.evaluates_at(state.step) && state.evaluated != state.step;
    const bool complete = !due || evaluate();
    if (!complete || stopping()) {
      if (state.step == plan.total && complete) break;  // nothing is left to be stopped
      return interrupted();
    }
    if (plan.saves_at(state.step)) save();
    if (state.step == plan.total) break;
    if (options.until > 0 && state.step >= options.until) {
      save();
      Json json = {{"status", "paused"}, {"step", state.step}, {"total", plan.total}};
      json.update(result("paused"));
      return {TrainStatus::paused, state.step, std::move(json)};
    }
    if (!train_step()) return interrupted();
  }
  save();
  if (ranks.leads()) save_final();
  TrainOutcome outcome{TrainStatus::finished, state.step, result("finished")};
  if (ranks.leads()) folder.write_result(outcome.result);
  return outcome;
}

// The weights under Hugging Face's names, and the averaged ones.
void Trainer::Impl::save_final() {
  const std::int64_t sequence = std::max<std::int64_t>(1, options.task.data.sequence);
  save_pretrained(session.model(), folder.path(), sequence);
  if (session.average().count() == 0) return;
  const WeightAverage::Use use(session.average(), session.model());
  create_folders(folder.averaged(), "train");
  save_pretrained(session.model(), folder.averaged(), sequence);
}

Trainer::Trainer(const TrainOptions& options, TrainHooks hooks) {
  // Warnings from before there is a place for them.
  std::vector<std::string> early;
  WarningNotes notes([&](const std::string& text) { early.push_back(text); });
  RunRanks ranks;  // outlives what fails: reports it to the others
  ranks.telling([&] {
    with_torch_messages(notes, [&] {
      ranks = open_ranks(options);
      if (!ranks.leads()) hooks = {.progress = {}, .note = {}, .warning = {}, .stop = hooks.stop};
      impl_ = std::make_unique<Impl>(options, std::move(hooks), ranks);
    });
  });
  for (const std::string& text : early) impl_->warn(text);
}
Trainer::~Trainer() = default;

TrainOutcome Trainer::run() {
  WarningNotes notes([this](const std::string& text) { impl_->warn(text); });
  return impl_->ranks.telling(
      [&] { return with_torch_messages(notes, [this] { return impl_->run(); }); });
}

}  // namespace rode::lab
