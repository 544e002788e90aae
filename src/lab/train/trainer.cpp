// SPDX-License-Identifier: Apache-2.0
// The loop: evaluate, save, step; and what ends it early.
#include "lab/train/trainer.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

#include "lab/train/batches.h"
#include "lab/train/checkpoint.h"
#include "lab/train/resume.h"
#include "lab/train/run_lock.h"
#include "lab/train/run_log.h"
#include "lab/train/session.h"
#include "rode/error.h"
#include "rode/optimizer.h"

namespace rode::lab {
namespace {

using Clock = std::chrono::steady_clock;

// About a second of the larger models: a wait costs what the host needs to get ahead again.
constexpr std::int64_t kReadOnGpu = 10;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace

struct Trainer::Impl {
  Impl(const TrainOptions& given, TrainHooks given_hooks)
      : options(given),
        hooks(std::move(given_hooks)),
        spec(resolve_optimizer(options.task, options.optimizer, options.settings)),
        method(Method::by_name(spec.optimizer, spec.settings)),
        batches(options.task, options.seed, options.data_folder),
        plan(plan_run(options.task, batches.epoch_samples(), options.steps)),
        folder(options.out),
        session(options, method) {
    state.data = batches.position();
    read_interval = session.device().is_cuda() ? kReadOnGpu : 1;
    if (options.read_interval > 0) read_interval = options.read_interval;
    const Json run = describe_run(options, plan, spec, method);
    for (const std::string& text : batches.notes()) note(text);
    if (options.resume && folder.has_run()) {
      folder.continue_run(run, [this](const std::string& text) { note(text); });
      // A run that is done is only read: its folder may be one that cannot be written.
      if (find_finished()) return;
      take_lock();
      folder.continue_run(run);  // another process may have replaced it until now
      folder.remove_temporaries();
      load();
    } else {
      folder.check_start(options.overwrite);
      folder.create();
      take_lock();
      folder.start(run, options.overwrite);
    }
  }

  bool stopping() const { return hooks.stop && hooks.stop(); }
  void note(const std::string& text) const {
    if (hooks.note) hooks.note(text);
  }

  bool find_finished();
  void take_lock();
  void load();
  void save();
  bool evaluate();
  void train_step();
  void settle();
  void report(double loss, bool evaluated);
  [[noreturn]] void diverge(std::int64_t step, const std::string& what);
  Json result(const char* status);
  TrainOutcome run();

  TrainOptions options;
  TrainHooks hooks;
  OptimizerSpec spec;
  Method method;
  BatchSource batches;
  RunPlan plan;
  RunFolder folder;
  std::optional<RunLock> lock;
  Session session;
  TrainState state;
  std::unique_ptr<RunLog> log;   // from run() on
  std::optional<Json> finished;  // result.json of a run that there is nothing left to do of
  bool resumed = false;
  std::int64_t saved = -1;  // the step of the last checkpoint
  WeightNorms norms;        // at the last evaluation
  double loss = 0;          // of the last batch that was read
  // Steps whose loss the device still has: their lines of the log are written when it is read.
  std::vector<StepRecord> waiting;
  std::vector<Unread> unread;
  std::int64_t read_interval = 1;
  // Of this process, without evaluations: for the progress line.
  double train_seconds = 0;
  std::int64_t steps_here = 0;
  Clock::time_point begin = Clock::now();
};

bool Trainer::Impl::find_finished() {
  finished = folder.result();
  if (finished && finished->value("status", "") != "finished") finished.reset();
  return finished.has_value();
}

void Trainer::Impl::take_lock() {
  lock.emplace(folder.path());
  if (!lock->held()) {
    note("the file system of '" + folder.path().string() +
         "' has no locks; nothing keeps a second process out of the folder");
  }
}

void Trainer::Impl::load() {
  const auto found = resume(folder, {.data = state.data, .total = plan.total, .seed = options.seed},
                            session, [this](const std::string& text) { note(text); });
  if (!found) return;
  state = *found;
  resumed = true;
  saved = state.step;
}

void Trainer::Impl::save() {
  if (saved == state.step) return;
  settle();
  if (!std::isfinite(session.norms().all)) diverge(state.step, "a weight is not finite");
  // The log first: a checkpoint names a length of it that must be there.
  log->sync();
  state.log_bytes = log->bytes();
  save_checkpoint(folder.checkpoint(state.step), session.model(), session.optimizer().optimizer(),
                  session.device(), state);
  saved = state.step;
  folder.keep_last(options.keep, saved);
}

// False where it was asked to stop before the end: nothing is recorded then.
bool Trainer::Impl::evaluate() {
  const auto measured = session.evaluate(batches, [this] { return stopping(); });
  if (!measured) return false;
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
  }
  log->evaluation({.step = state.step,
                   .loss = measured->loss,
                   .accuracy = measured->accuracy,
                   .best_loss = state.best_loss,
                   .weight_norm = norms.all,
                   .radii = norms.matrices});
  const auto units =
      static_cast<double>(steps_here * options.task.train.batch * batches.units_per_row());
  log->time(state.step, train_seconds > 0 ? units / train_seconds : 0);
  report(loss, true);
  return true;
}

void Trainer::Impl::train_step() {
  const Clock::time_point start = Clock::now();
  const Batch batch = batches.next();
  unread.push_back(session.gradients(batch));
  const double multiplier = plan.multiplier(state.step);
  waiting.push_back({.step = state.step, .multiplier = multiplier});
  StepRecord& record = waiting.back();
  if (read_interval == 1) {
    // Known before anything has moved.
    loss = session.read(unread).front().loss;
    if (!std::isfinite(loss)) diverge(state.step, "the loss is " + std::to_string(loss));
  }
  try {
    session.step(multiplier);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::non_finite) throw;
    diverge(state.step, error.what());
  }
  const Rates rates = session.optimizer().rates();
  record.lr = rates.lr;
  record.lr_rho = rates.lr_rho;
  record.lr_rest = rates.lr_rest;
  ++state.step;
  state.data = batch.after;
  if (std::ssize(waiting) >= read_interval || plan.evaluates_at(state.step) ||
      plan.saves_at(state.step)) {
    settle();
  }
  train_seconds += seconds_since(start);
  ++steps_here;
  report(loss, false);
}

// Reads what the device has of the steps since the last time, and writes their lines. Before every
// evaluation and checkpoint: neither sees weights behind a loss that was not finite.
void Trainer::Impl::settle() {
  if (waiting.empty()) return;
  const std::vector<Measured> measured = session.read(unread);
  std::string refused;
  try {
    session.check();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::non_finite) throw;
    refused = error.what();
  }
  const rode::Optimizer& engine = session.optimizer().optimizer().engine();
  for (std::size_t i = 0; i < waiting.size(); ++i) {
    StepRecord& record = waiting[i];
    record.loss = loss = measured[i].loss;
    record.accuracy = measured[i].accuracy;
    if (!std::isfinite(loss)) diverge(record.step, "the loss is " + std::to_string(loss));
    if (i + 1 == waiting.size() && refused.empty()) {
      record.global = engine.global_diagnostics();
      // With the step and not with the evaluation behind it: a resumed run may begin between them.
      if (plan.evaluates_at(record.step + 1)) record.matrices = engine.matrix_diagnostics();
    }
    log->step(record);
  }
  if (!refused.empty()) diverge(waiting.back().step, refused);
  waiting.clear();
  unread.clear();
}

void Trainer::Impl::report(double batch_loss, bool evaluated) {
  if (!hooks.progress) return;
  const Rates rates = session.optimizer().rates();
  Progress progress{.step = state.step, .total = plan.total, .loss = batch_loss};
  if (state.evaluated >= 0) progress.eval_loss = state.last_loss;
  if (state.evaluated >= 0 && !options.task.is_language()) {
    progress.eval_accuracy = state.last_accuracy;
  }
  progress.evaluated = evaluated;
  progress.lr = rates.lr;
  progress.lr_rho = rates.lr_rho;
  progress.lr_rest = rates.lr_rest;
  progress.unit = options.task.is_language() ? "tokens" : "images";
  if (steps_here > 0) {
    const double a_step = train_seconds / static_cast<double>(steps_here);
    const auto units = static_cast<double>(options.task.train.batch * batches.units_per_row());
    progress.units_per_second = units / a_step;
    progress.seconds_left = seconds_since(begin) / static_cast<double>(steps_here) *
                            static_cast<double>(plan.total - state.step);
  }
  hooks.progress(progress);
}

void Trainer::Impl::diverge(std::int64_t step, const std::string& what) {
  state.step = step;
  log->diverged(step, what);
  log->sync();
  Json json = result("diverged");
  json["what"] = what;
  folder.write_result(json);
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
  const TrainSpec& train = options.task.train;
  const double seconds = log->seconds();
  const std::int64_t units = state.step * train.batch * batches.units_per_row();
  Json json = {{"status", status},
               {"task", options.task.name},
               {"optimizer", spec.name},
               {"seed", options.seed},
               {"steps", state.step},
               {"units", units},
               {"unit", options.task.is_language() ? "tokens" : "images"}};
  if (state.evaluated >= 0) {
    json["final_loss"] = state.last_loss;
    json["best_loss"] = state.best_loss;
    json["best_step"] = state.best_step;
    json["weight_norm"] = session.norms().all;
  }
  if (!options.task.is_language()) {
    json["final_accuracy"] = state.last_accuracy;
    json["best_accuracy"] = state.best_accuracy;
  }
  if (const auto lowest = batches.best_loss()) json["lowest_possible_loss"] = *lowest;
  json["parameters"] = session.parameters();
  const rode::Optimizer& engine = session.optimizer().optimizer().engine();
  json["state_bytes"] = engine.state_bytes();
  json["workspace_bytes"] = engine.workspace_bytes();
  json["peak_memory_bytes"] = session.peak_bytes();
  json["seconds"] = seconds;
  json["units_per_second"] = seconds > 0 ? static_cast<double>(units) / seconds : 0.0;
  json["threads"] = session.threads();
  json["device"] = session.device().str();
  return json;
}

TrainOutcome Trainer::Impl::run() {
  if (options.resume) {
    // Asked again under the lock: another process may have ended while this one began.
    if (finished || find_finished()) {
      note("the run in '" + folder.path().string() + "' is finished; this is its result");
      return {TrainStatus::finished, finished->value("steps", state.step), *finished};
    }
    folder.remove_result();
    if (resumed) note("resumed after step " + std::to_string(state.step));
  }
  log = std::make_unique<RunLog>(folder, state.log_bytes, state.step, options.tensorboard,
                                 [this](const std::string& text) { note(text); });
  batches.begin(state.data);
  begin = Clock::now();
  for (;;) {
    const bool due = plan.evaluates_at(state.step) && state.evaluated != state.step;
    const bool complete = !due || evaluate();
    if (!complete || stopping()) {
      if (state.step == plan.total && complete) break;  // nothing is left to be stopped
      save();
      return {TrainStatus::interrupted, state.step, {}};
    }
    if (plan.saves_at(state.step)) save();
    if (state.step == plan.total) break;
    if (options.until > 0 && state.step >= options.until) {
      save();
      Json json = {{"status", "paused"}, {"step", state.step}, {"total", plan.total}};
      json.update(result("paused"));
      return {TrainStatus::paused, state.step, std::move(json)};
    }
    train_step();
  }
  save();
  save_pretrained(session.model(), folder.path(),
                  std::max<std::int64_t>(1, options.task.data.sequence));
  TrainOutcome outcome{TrainStatus::finished, state.step, result("finished")};
  folder.write_result(outcome.result);
  return outcome;
}

Trainer::Trainer(const TrainOptions& options, TrainHooks hooks)
    : impl_(std::make_unique<Impl>(options, std::move(hooks))) {}
Trainer::~Trainer() = default;
TrainOutcome Trainer::run() { return impl_->run(); }

}  // namespace rode::lab
