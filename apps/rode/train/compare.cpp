// SPDX-License-Identifier: Apache-2.0
// `rode compare`: several optimizers and seeds on one task, and the report.
//
// Every run is a separate process, the same as `rode train`: its memory is its own, and its
// numbers do not depend on what ran before it.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "commands.h"
#include "core/cores.h"
#include "lab/report/report.h"
#include "lab/run/batches.h"
#include "lab/run/interrupt.h"
#include "lab/run/plan.h"
#include "lab/run/progress.h"
#include "lab/task/sources.h"
#include "report/report.h"
#include "support.h"
#include "train/child_process.h"
#include "validators.h"

namespace rode::cli {
namespace {

struct CompareArguments {
  std::string task;
  std::string scale;
  std::vector<std::string> optimizers;
  std::int64_t seeds = 3;
  std::vector<std::string> settings;
  std::int64_t steps = 0;
  std::optional<std::int64_t> warmup;
  std::string out;
  std::string data;
  std::string device = "auto";
  int threads = 0;
  int jobs = 1;
  bool overwrite = false;
  bool json = false;
  bool quiet = false;
};

struct Job {
  lab::TrainOptions options;

  std::string label() const { return fmt::format("{} seed {}", options.optimizer, options.seed); }
};

lab::Json expected_run(const lab::TrainOptions& options) {
  const lab::BatchSource data(options.task, options.seed, options.data_folder);
  const lab::OptimizerSpec spec =
      lab::resolve_optimizer(options.task, options.optimizer, options.settings);
  const lab::RunPlan plan =
      lab::plan_run(options.task, data.epoch_samples(), options.steps, options.warmup);
  return lab::describe_run(options, plan, spec, Method::by_name(spec.optimizer, spec.settings));
}

// "rode.lr=1e-3" by optimizer, values of the task under "".
std::map<std::string, Settings> settings_of(const CompareArguments& arguments) {
  std::map<std::string, Settings> out;
  for (const auto& [key, value] : parse_settings(arguments.settings)) {
    if (lab::is_task_key(key)) {
      out[""].emplace_back(key, value);
      continue;
    }
    const std::size_t dot = key.rfind('.');  // names may have dots, options have none
    const std::string name = key.substr(0, dot == std::string::npos ? 0 : dot);
    const auto& names = arguments.optimizers;
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      throw UsageError(
          fmt::format("--set '{}={}': expected OPTIMIZER.option=value with one of --optimizers "
                      "({}), or a value "
                      "of the task such as train.batch=16",
                      key, value, fmt::join(names, ", ")));
    }
    out[name].emplace_back(key.substr(dot + 1), value);
  }
  return out;
}

std::vector<Job> jobs_of(const CompareArguments& arguments, const std::filesystem::path& folder) {
  lab::TrainOptions options;
  std::map<std::string, Settings> settings = settings_of(arguments);
  options.steps = arguments.steps;
  options.warmup = arguments.warmup;
  options.data_folder =
      arguments.data.empty() ? lab::default_data_folder() : std::filesystem::path(arguments.data);
  options.task = lab::with_vocabulary_of_data(
      lab::load_task(arguments.task, arguments.scale, settings[""]), options.data_folder);
  std::vector<Job> jobs;
  std::set<std::string> seen;
  for (const std::string& name : arguments.optimizers) {
    if (!seen.insert(name).second) {
      throw Error(
          ErrorKind::invalid_argument, "compare",
          fmt::format(
              "--optimizers has '{}' twice, and both would train in the same folder; name it once",
              name));
    }
    for (std::int64_t seed = 1; seed <= arguments.seeds; ++seed) {
      Job& job = jobs.emplace_back(Job{options});
      job.options.optimizer = name;
      job.options.settings = settings[name];
      job.options.seed = static_cast<std::uint64_t>(seed);
      job.options.out = folder / fmt::format("{}-seed{}", name, seed);
    }
  }
  return jobs;
}

// Whether the run has to be made. A run of other options in the folder is an error.
bool is_needed(const Job& job, bool overwrite) {
  const lab::Json run = expected_run(job.options);  // also finds unknown names and missing data
  const lab::RunFolder folder(job.options.out);
  if (overwrite || !folder.has_run()) return true;
  folder.continue_run(run);
  return !folder.result();
}

// `first`: of all; what it says of the machine holds for the others.
std::vector<std::string> command_of(const Job& job, const CompareArguments& arguments, int threads,
                                    bool first) {
  std::vector<std::string> words = {"train",
                                    "--task",
                                    arguments.task,
                                    "--optimizer",
                                    job.options.optimizer,
                                    "--seed",
                                    fmt::format("{}", job.options.seed),
                                    "--out",
                                    job.options.out.string(),
                                    "--data",
                                    job.options.data_folder.string(),
                                    "--device",
                                    arguments.device,
                                    "--json",
                                    arguments.overwrite ? "--overwrite" : "--resume"};
  if (!arguments.scale.empty()) words.insert(words.end(), {"--scale", arguments.scale});
  if (arguments.steps > 0)
    words.insert(words.end(), {"--steps", fmt::format("{}", arguments.steps)});
  if (arguments.warmup)
    words.insert(words.end(), {"--warmup", fmt::format("{}", *arguments.warmup)});
  for (const auto& [name, settings] : settings_of(arguments)) {
    if (!name.empty() && name != job.options.optimizer) continue;
    for (const auto& [key, value] : settings) {
      words.insert(words.end(), {"--set", fmt::format("{}={}", key, value)});
    }
  }
  if (threads > 0) words.insert(words.end(), {"--threads", fmt::format("{}", threads)});
  if (arguments.quiet || arguments.jobs > 1) words.emplace_back("--quiet");
  if (!first) words.emplace_back("--warnings-told");
  return words;
}

// What the table can use: a run that is done, if only by diverging.
void require_result(const Job& job, int status, bool overwrite) {
  const auto result = lab::RunFolder(job.options.out).result();
  if (result && (status == 0 || result->value("status", "") == "diverged")) return;
  const std::string how =
      status <= ChildProcess::kSignal
          ? fmt::format("ended with exit code {}; its message is above", status)
      : status - ChildProcess::kSignal == SIGKILL
          ? "was ended by signal 9; if you did not send it, the process probably ran out of "
            "memory: "
            "lower --jobs, or batch in the task"
          : fmt::format("was ended by signal {}", status - ChildProcess::kSignal);
  throw Error(
      ErrorKind::unsupported, "compare",
      fmt::format("the run '{}' {}; finished work is kept: run the same command{} to continue",
                  job.label(), how, overwrite ? " without --overwrite" : " again"));
}

std::string outcome_of(const Job& job) {
  const auto result = lab::RunFolder(job.options.out).result();
  if (!result || result->value("status", "") != "finished") return "diverged";
  return fmt::format("loss {:.4f}, {:.0f} s", result->value("final_loss", 0.0),
                     result->value("seconds", 0.0));
}

struct Running {
  Job* job;
  std::unique_ptr<ChildProcess> process;
};

// All are asked to stop before the first is waited for.
struct RunningJobs {
  std::vector<Running> list;

  RunningJobs() = default;
  RunningJobs(const RunningJobs&) = delete;
  RunningJobs& operator=(const RunningJobs&) = delete;
  ~RunningJobs() { stop(); }
  void stop() {
    for (const Running& one : list) one.process->stop();
  }
};

void run_jobs(std::vector<Job>& jobs, const CompareArguments& arguments) {
  const int threads = arguments.threads > 0 ? arguments.threads
                      : arguments.jobs > 1  ? std::max(1, available_cores() / arguments.jobs)
                                            : 0;
  const lab::InterruptGuard interrupt;
  RunningJobs all;
  std::vector<Running>& running = all.list;
  std::size_t next = 0;
  std::size_t done = 0;
  const auto begin = std::chrono::steady_clock::now();
  // "; about 2:03 left in total": at the pace of the runs that are done.
  const auto time_left = [&]() -> std::string {
    if (done == 0 || done == jobs.size()) return {};
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin;
    const double each = spent.count() / static_cast<double>(done);
    return fmt::format("; about {} left in total",
                       lab::clock_text(each * static_cast<double>(jobs.size() - done)));
  };
  while (next < jobs.size() || !running.empty()) {
    while (next < jobs.size() && running.size() < static_cast<std::size_t>(arguments.jobs) &&
           !lab::InterruptGuard::requested()) {
      Job& job = jobs[next++];
      if (!arguments.quiet && arguments.jobs == 1) {
        fmt::print(stderr, "[{}/{}] {}{}\n", next, jobs.size(), job.label(), time_left());
      }
      running.push_back(
          {&job, std::make_unique<ChildProcess>(command_of(job, arguments, threads, next == 1),
                                                // A separate run, also under a launcher.
                                                ChildOptions{.environment = {"WORLD_SIZE=1"}})});
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const bool stop = lab::InterruptGuard::requested();
    if (stop) all.stop();
    for (std::size_t i = 0; i < running.size();) {
      const auto status = running[i].process->poll();
      if (!status) {
        ++i;
        continue;
      }
      Job* job = running[i].job;
      running.erase(running.begin() + static_cast<std::ptrdiff_t>(i));
      if (stop) continue;
      require_result(*job, *status, arguments.overwrite);
      ++done;
      if (!arguments.quiet && arguments.jobs > 1) {
        fmt::print(stderr, "[{}/{}] {}: {}{}\n", done, jobs.size(), job->label(), outcome_of(*job),
                   time_left());
      }
    }
    if (stop && running.empty()) {
      throw Error(ErrorKind::unsupported, "compare",
                  fmt::format("stopped; the runs are saved: run the same command{} to continue",
                              arguments.overwrite ? " without --overwrite" : " again"));
    }
  }
}

void tell(const std::string& text) { fmt::print(stderr, "rode: note: {}\n", on_terminal(text)); }

// As `rode report` of these runs alone, in this order: the folder may have others.
lab::Report report_on(const std::vector<Job>& jobs) {
  lab::FoundRuns found;
  for (const Job& job : jobs) found.runs.push_back(lab::read_run(job.options.out, tell));
  const lab::Task& task = jobs.front().options.task;
  return lab::make_report(std::move(found), {.base = {}, .titles = {{task.name, task.title}}});
}

void run_compare(const CompareArguments& arguments) {
  std::vector<Job> jobs;
  std::vector<Job> needed;
  std::filesystem::path folder;
  arguments_as_usage([&] {
    folder = arguments.out.empty()
                 ? std::filesystem::path("runs") /
                       lab::run_name(lab::load_task(arguments.task, arguments.scale, {}))
                 : std::filesystem::path(arguments.out);
    jobs = jobs_of(arguments, folder);
    for (const Job& job : jobs) {
      if (is_needed(job, arguments.overwrite)) needed.push_back(job);
    }
  });
  if (!arguments.quiet && needed.size() < jobs.size()) {
    fmt::print(stderr, "rode: note: {} of {} runs are done already and are not repeated\n",
               jobs.size() - needed.size(), jobs.size());
  }
  // The first run prints its note itself.
  std::set<std::string> told;
  if (!needed.empty()) told.insert(needed.front().options.optimizer);
  for (const Job& job : needed) {
    const lab::TrainOptions& o = job.options;
    const std::string note =
        lab::note_of_defaults(o.task, lab::resolve_optimizer(o.task, o.optimizer, o.settings));
    if (!note.empty() && told.insert(o.optimizer).second) tell(note);
  }
  run_jobs(needed, arguments);
  const lab::Report report = report_on(jobs);
  lab::write_report(report, folder, lab::kFormats, tell);
  if (arguments.json) {
    fmt::print("{}\n", lab::to_json(report.comparisons.front()).dump(2));
    return;
  }
  print_report(report);
  fmt::print("Report: {}\n", (folder / "report.html").string());
}

}  // namespace

void add_compare_command(CLI::App& app) {
  auto arguments = std::make_shared<CompareArguments>();
  CLI::App* command =
      app.add_subcommand("compare", "Train a task with several optimizers and seeds, and report");
  command->add_option("--task", arguments->task, "name of a task, or the path of a .toml file")
      ->required();
  command->add_option("--scale", arguments->scale,
                      "a scale defined in the task's file: tiny, small, ...");
  command
      ->add_option(
          "--optimizers", arguments->optimizers,
          "optimizers, separated by commas; one that the task has no rates for uses its defaults")
      ->required()
      ->delimiter(',');
  command
      ->add_option("--set", arguments->settings,
                   "OPTIMIZER.key=value: an option of one of the optimizers (rode.lr=2e-3); or a "
                   "value of the task (train.batch=16)")
      ->allow_extra_args(false);
  command
      ->add_option("--seeds", arguments->seeds,
                   "number of seeds N; seeds 1 to N are run (default 3)")
      ->check(whole_number(1, kMaxCount));
  command
      ->add_option("--steps", arguments->steps,
                   "number of steps of each run, instead of the task's")
      ->check(whole_number(1, kMaxCount));
  command
      ->add_option("--warmup", arguments->warmup, "number of warm-up steps, instead of the task's")
      ->check(whole_number(0, kMaxCount));
  command->add_option("--out", arguments->out,
                      "folder of the runs and the report (default runs/TASK)");
  command->add_option("--data", arguments->data,
                      "folder of the datasets (default: RODE_DATA_DIR, else data)");
  command
      ->add_option("--jobs", arguments->jobs,
                   "number of runs at the same time, which share the cores (default 1)")
      ->check(whole_number(1, kMaxThreads));
  command->add_option("--threads", arguments->threads, "threads of each run")
      ->check(whole_number(1, kMaxThreads));
  command
      ->add_option("--device", arguments->device,
                   "device to train on; auto (default): a GPU if there is one")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  command->add_flag("--overwrite", arguments->overwrite,
                    "repeat every run, even if it is done already");
  command->add_flag("--quiet", arguments->quiet, "show no progress");
  command->add_flag("--json", arguments->json, "print the comparison as JSON");
  command->footer(
      "Example: rode compare --task tiny-lm --optimizers rode,muon-rms,adamw --seeds 3\n"
      "         --set rode.lr=2e-3 --set train.batch=32");
  command->callback([arguments] { run_compare(*arguments); });
}

}  // namespace rode::cli
