// SPDX-License-Identifier: Apache-2.0
// `rode train`: one task, one optimizer, one seed.
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "commands.h"
#include "lab/run/interrupt.h"
#include "lab/run/progress.h"
#include "lab/run/rank_rules.h"
#include "lab/task/model_size.h"
#include "lab/task/sources.h"
#include "lab/train/trainer.h"
#include "support.h"
#include "train/launch.h"
#include "validators.h"

namespace rode::cli {
namespace {

constexpr std::uint64_t kMaxSeconds = 1'000'000;

struct TrainArguments {
  std::string task;
  std::string scale;
  std::string optimizer, preset;
  std::vector<std::string> settings;
  std::string out;
  std::string data;
  lab::TrainOptions options;
  bool json = false;
  bool quiet = false;
  bool warnings_told = false;
  int ranks = 0;  // 0: the environment's number, or one
};

// On a terminal one line that is written over; elsewhere a line per evaluation, and one whenever a
// minute has passed without one.
class ProgressLine {
 public:
  explicit ProgressLine(bool quiet) : quiet_(quiet), terminal_(::isatty(STDERR_FILENO) == 1) {}
  ~ProgressLine() { end(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void show(const lab::Progress& progress) {
    constexpr std::chrono::minutes kSilence(1);
    const Clock::time_point now = Clock::now();
    if (quiet_ || (!terminal_ && !progress.evaluated && now - shown_ < kSilence)) return;
    shown_ = now;
    const std::string line = lab::format_progress(progress);
    fmt::print(stderr, "{}{}{}", terminal_ ? "\r\033[K" : "", line, terminal_ ? "" : "\n");
    open_ = terminal_;
  }
  void end() {
    if (open_) fmt::print(stderr, "\n");
    open_ = false;
  }

 private:
  using Clock = std::chrono::steady_clock;

  bool quiet_;
  bool terminal_;
  Clock::time_point shown_ = Clock::now();
  bool open_ = false;
};

// A step takes and frees the same large blocks. Given back to the system each time, they would
// come back to be zeroed page by page: a third of the time where the vocabulary is large.
void keep_freed_memory() {
#ifdef __GLIBC__
  constexpr int kLargest = 1 << 30;
  ::mallopt(M_MMAP_THRESHOLD, kLargest);
  ::mallopt(M_TRIM_THRESHOLD, kLargest);
#endif
}

std::string default_folder(const lab::TrainOptions& options) {
  return fmt::format("runs/{}/{}-seed{}", lab::run_name(options.task), options.optimizer,
                     options.seed);
}

void print_result(const lab::Json& result, const std::filesystem::path& folder) {
  fmt::print("{} on {}, seed {}: validation loss {:.4f}, best {:.4f} after step {}",
             result.value("optimizer", ""), result.value("task", ""),
             result.value("seed", std::uint64_t{0}), result.value("final_loss", 0.0),
             result.value("best_loss", 0.0), result.value("best_step", std::int64_t{0}));
  if (result.contains("final_accuracy")) {
    fmt::print(", accuracy {:.2f}%", 100 * result.value("final_accuracy", 0.0));
  }
  if (result.contains("lowest_possible_loss")) {
    fmt::print(" (lowest possible {:.4f})", result.value("lowest_possible_loss", 0.0));
  }
  fmt::print("; norm {:.3f}, {:.1f} s; {}\n", result.value("weight_norm", 0.0),
             result.value("seconds", 0.0), folder.string());
}

void print_outcome(const lab::TrainOutcome& outcome, const TrainArguments& arguments) {
  const std::filesystem::path& out = arguments.options.out;
  if (arguments.json) {
    fmt::print("{}\n", outcome.result.dump(2));
  } else if (outcome.status == lab::TrainStatus::paused) {
    fmt::print("paused after step {}, which is saved; continue with --resume ({})\n", outcome.step,
               out.string());
  } else {
    print_result(outcome.result, out);
  }
}

// Whether this process is to start others instead of training.
bool starts_ranks(const TrainArguments& arguments, const std::optional<RankPlace>& place) {
  if (place && arguments.ranks > 0 && arguments.ranks != place->size) {
    throw UsageError(
        fmt::format("--ranks {} but WORLD_SIZE = {} in the environment; set only one of them",
                    arguments.ranks, place->size));
  }
  return !place && arguments.ranks > 1;
}

// Turns the arguments into options; `note` receives messages for the user.
void resolve(TrainArguments& arguments, const std::function<void(std::string_view)>& note) {
  lab::TrainOptions& options = arguments.options;
  Settings of_task;
  for (const auto& setting : parse_settings(arguments.settings)) {
    (lab::is_task_key(setting.first) ? of_task : options.settings).push_back(setting);
  }
  options.optimizer = arguments.optimizer;
  if (!arguments.preset.empty()) options.optimizer += "-" + arguments.preset;
  options.data_folder =
      arguments.data.empty() ? lab::default_data_folder() : std::filesystem::path(arguments.data);
  const lab::Task task = lab::load_task(arguments.task, arguments.scale, of_task);
  options.task = lab::with_vocabulary_of_data(task, options.data_folder);
  if (options.task.model.vocab_size != task.model.vocab_size && !arguments.warnings_told) {
    note(fmt::format("using the dataset's vocabulary ({} entries): the model has {} parameters",
                     options.task.model.vocab_size, lab::parameter_count(options.task.model)));
  }
  options.out = arguments.out.empty() ? default_folder(options) : arguments.out;
}

// Finds errors before the ranks are started, so that there is one and not one per rank.
void check_before_start(const TrainArguments& arguments) {
  const lab::TrainOptions& options = arguments.options;
  lab::require_equal_rows(options.task, arguments.ranks);
  const lab::OptimizerSpec spec =
      lab::resolve_optimizer(options.task, options.optimizer, options.settings);
  (void)Method::by_name(spec.optimizer, spec.settings);
  const lab::RunFolder folder(options.out);
  if (!options.resume || !folder.has_run()) folder.check_start(options.overwrite);
}

void run_train(TrainArguments arguments) {
  const std::optional<RankPlace> place = rank_place();
  if (starts_ranks(arguments, place)) {
    arguments_as_usage([&] {
      resolve(arguments, [](std::string_view) {});
      check_before_start(arguments);
    });
    launch_ranks({.ranks = arguments.ranks,
                  .threads = arguments.options.threads,
                  .timeout = arguments.options.timeout_seconds});
    return;
  }
  keep_freed_memory();
  lab::TrainOptions& options = arguments.options;
  options.meet = place.has_value();
  const bool leads = !place || place->rank == 0;
  ProgressLine line(arguments.quiet || !leads);
  const lab::InterruptGuard interrupt;
  lab::TrainHooks hooks;
  hooks.progress = [&](const lab::Progress& progress) { line.show(progress); };
  hooks.note = [&](std::string_view text) {
    if (!leads) return;
    line.end();
    fmt::print(stderr, "rode: note: {}\n", on_terminal(text));
  };
  if (!arguments.warnings_told) hooks.warning = hooks.note;
  hooks.stop = [] { return lab::InterruptGuard::requested(); };

  std::unique_ptr<lab::Trainer> trainer;
  arguments_as_usage([&] {
    resolve(arguments, hooks.note);
    trainer = std::make_unique<lab::Trainer>(options, hooks);
  });
  const std::string defaults = lab::note_of_defaults(
      options.task, lab::resolve_optimizer(options.task, options.optimizer, options.settings));
  if (!defaults.empty() && !arguments.warnings_told) hooks.note(defaults);
  const lab::TrainOutcome outcome = trainer->run();
  line.end();
  if (outcome.status == lab::TrainStatus::interrupted) {
    throw Error(
        ErrorKind::unsupported, "train",
        fmt::format("stopped after step {}, which is saved; continue with --resume", outcome.step));
  }
  if (leads) print_outcome(outcome, arguments);
}

}  // namespace

void add_train_command(CLI::App& app) {
  auto arguments = std::make_shared<TrainArguments>();
  lab::TrainOptions& options = arguments->options;
  CLI::App* command = app.add_subcommand("train", "Train a task's model with one optimizer");
  command->add_option("--task", arguments->task, "name of a task, or the path of a .toml file")
      ->required();
  command->add_option("--scale", arguments->scale,
                      "a scale defined in the task's file: tiny, small, ...");
  command
      ->add_option("--optimizer", arguments->optimizer,
                   "name of an optimizer; one that the task has no rates for uses its defaults")
      ->required();
  command->add_option("--preset", arguments->preset,
                      "preset of the optimizer: rode with preset paper is rode-paper");
  command
      ->add_option("--set", arguments->settings,
                   "key=value: an option of the optimizer (lr=1e-3), or a value of the task "
                   "(train.batch=16)")
      ->allow_extra_args(false);
  command
      ->add_option("--seed", options.seed,
                   "seed of the initial weights, the data order and dropout (default 1)")
      ->check(whole_number(0));
  command->add_option("--out", arguments->out,
                      "folder of the run (default runs/TASK/OPTIMIZER-seedS)");
  command->add_option("--data", arguments->data,
                      "folder of the datasets (default: RODE_DATA_DIR, else data)");
  CLI::Option* resume = command->add_flag(
      "--resume", options.resume, "continue the run in the folder, or start one if there is none");
  command->add_flag("--overwrite", options.overwrite, "replace the run in the folder")
      ->excludes(resume);
  command
      ->add_option("--steps", options.steps,
                   "number of steps, instead of the task's; the schedule ends there; with "
                   "--resume, a larger number extends a finished run")
      ->check(whole_number(1, kMaxCount));
  command->add_option("--warmup", options.warmup, "number of warm-up steps, instead of the task's")
      ->check(whole_number(0, kMaxCount));
  command
      ->add_option("--until", options.until,
                   "save and pause after this step; the schedule is not changed")
      ->check(whole_number(1, kMaxCount));
  command
      ->add_option("--threads", options.threads,
                   "threads of Torch and the engine (default: all cores)")
      ->check(whole_number(1, kMaxThreads));
  command
      ->add_option("--ranks", arguments->ranks,
                   "number of processes to start on this machine, which divide every batch and the "
                   "optimizer's state; not needed under torchrun")
      ->check(whole_number(1, kMaxThreads));
  command
      ->add_option("--ranks-backend", options.ranks_backend,
                   "communication backend of the ranks: nccl (GPU to GPU), gloo (through the host) "
                   "or auto (default): nccl if every rank has its own GPU")
      ->check(CLI::IsMember({"auto", "gloo", "nccl"}));
  command
      ->add_option("--timeout", options.timeout_seconds,
                   "seconds to wait for another rank before the run fails (default 1800)")
      ->check(whole_number(1, kMaxSeconds));
  command
      ->add_option("--device", options.device,
                   "device to train on; auto (default): a GPU if there is one")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  command->add_option("--keep", options.keep, "number of checkpoints to keep (default 2)")
      ->check(whole_number(1, kMaxCount));
  command->add_flag("--keep-best", options.keep_best,
                    "also save the weights with the lowest validation loss, in OUT/best");
  command->add_option("--weights", options.weights,
                      "safetensors file with the initial weights, instead of random ones");
  command
      ->add_option(
          "--log-interval", options.log_interval,
          "steps between log lines with norms and with the diagnostics of every matrix (default: "
          "norms every step, on a GPU every 10 steps; matrices before each evaluation)")
      ->check(whole_number(1, kMaxCount));
  command->add_flag("!--no-tensorboard", options.tensorboard, "write no event files");
  command->add_flag("--quiet", arguments->quiet, "show no progress");
  command->add_flag("--json", arguments->json, "print the result as JSON");
  // For `rode compare`, in all runs after the first: their warnings would be the same.
  command->add_flag("--warnings-told", arguments->warnings_told)->group("");
  command->footer(
      "Examples:\n"
      "  rode train --task tiny-lm --optimizer rode --set lr=2e-3 --set train.batch=32\n"
      "  rode train --task gpt2 --scale tiny --optimizer adamw --data DIR\n"
      "  rode train --task tiny-lm --optimizer rode --resume --steps 1000\n"
      "  rode train --task tiny-lm --optimizer rode --ranks 4\n"
      "  torchrun --no-python --nproc-per-node 4 rode train --task tiny-lm --optimizer rode");
  command->callback([arguments] {
    try {
      run_train(*arguments);
    } catch (const std::exception& error) {
      tell_launcher(error);
      throw;
    }
  });
}

}  // namespace rode::cli
