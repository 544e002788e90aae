// SPDX-License-Identifier: Apache-2.0
// `rode bench systems`: the paper's compute and memory table.
#include "lab/train/systems.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "commands.h"
#include "core/file_io.h"
#include "lab/run/plan.h"
#include "lab/task/constants.h"
#include "support.h"
#include "validators.h"

namespace rode::cli {
namespace {

struct SystemsArguments {
  std::vector<std::string> tasks = {"qwen2-114m", "resnet50-imagenet"};
  std::vector<std::string> optimizers = {"adamw",  "muon",     "muon-rms", "soap",
                                         "mars-m", "ademamix", "rode"};
  std::string scale;
  bool loop = false;
  lab::SystemsOptions options;
  std::string out;
  bool json = false;
  bool quiet = false;
};

struct Row {
  std::string task;
  std::string optimizer;
  lab::SystemsResult result;
};

// The paper's: a micro-batch of 16 sequences, 64 images. A scale has its own.
lab::Task task_of(const SystemsArguments& arguments, const std::string& name) {
  const lab::Task task = lab::load_task(name, arguments.scale, {});
  const std::string batch = fmt::format("{}", task.is_language() ? 16 : 64);
  Settings settings = {{"train.accumulate", "1"}};
  if (arguments.scale.empty()) settings.emplace_back("train.batch", batch);
  return lab::with_settings(task, settings);
}

// One that the task has no rates for runs with the paper's constants and rates of its own: what a
// step costs does not depend on them.
lab::OptimizerSpec optimizer_of(const lab::Task& task, const std::string& name) {
  const auto has = [&](const lab::OptimizerSpec& spec) { return spec.name == name; };
  if (std::any_of(task.optimizers.begin(), task.optimizers.end(), has)) return task.optimizer(name);
  lab::OptimizerSpec spec = lab::resolve_optimizer(task, name, {});
  spec.settings = lab::constants_of("paper", spec.optimizer);
  return spec;
}

std::vector<Row> measure(const SystemsArguments& arguments) {
  std::vector<lab::SystemsCase> cases;
  std::vector<std::string> names;
  arguments_as_usage([&] {
    for (const std::string& name : arguments.tasks) {
      const lab::Task task = task_of(arguments, name);
      for (const std::string& optimizer : arguments.optimizers) {
        const lab::OptimizerSpec spec = optimizer_of(task, optimizer);
        const bool rode = Method::by_name(spec.optimizer).family() == "rode";
        if (rode && arguments.loop) {
          cases.push_back({task, spec, false});
          names.push_back(optimizer + " (loop)");
        }
        cases.push_back({task, spec, true});
        names.push_back(rode && arguments.loop ? optimizer + " (fused)" : optimizer);
      }
    }
  });
  std::vector<Row> rows;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    if (!arguments.quiet) {
      fmt::print(stderr, "[{}/{}] {} on {}\n", i + 1, cases.size(), names[i], cases[i].task.name);
    }
    rows.push_back(
        {cases[i].task.name, names[i], lab::measure_systems(cases[i], arguments.options)});
  }
  return rows;
}

// Its step over this one's: 1 for AdamW itself, 0 where AdamW was not measured.
double throughput(const std::vector<Row>& rows, const Row& row) {
  for (const Row& other : rows) {
    if (other.task == row.task && other.optimizer == "adamw") {
      return other.result.step_ms / row.result.step_ms;
    }
  }
  return 0;
}

Json to_json(const SystemsArguments& arguments, const std::vector<Row>& rows) {
  const lab::SystemsOptions& options = arguments.options;
  Json json = {{"bench", "systems"},
               {"environment", lab::systems_environment(options)},
               {"warmup", options.warmup},
               {"steps", options.steps},
               {"runs", options.runs}};
  if (!arguments.scale.empty()) json["scale"] = arguments.scale;
  json["rows"] = Json::array();
  for (const Row& row : rows) {
    const lab::SystemsResult& r = row.result;
    Json entry = {{"task", row.task},
                  {"optimizer", row.optimizer},
                  {"parameters", r.parameters},
                  {"state_bytes", r.state_bytes},
                  {"workspace_bytes", r.workspace_bytes}};
    if (r.torch_peak_bytes) {
      entry["torch_peak_bytes"] = *r.torch_peak_bytes;
      entry["peak_bytes"] = *r.torch_peak_bytes + r.workspace_bytes;
    }
    entry["step_ms"] = r.step_ms;
    entry["optimizer_ms"] = r.optimizer_ms;
    entry["step_ms_of_runs"] = r.step_ms_of_runs;
    entry["optimizer_ms_of_runs"] = r.optimizer_ms_of_runs;
    if (const double relative = throughput(rows, row); relative > 0) {
      entry["throughput_vs_adamw"] = relative;
    }
    json["rows"].push_back(std::move(entry));
  }
  return json;
}

std::string text_of(const std::vector<Row>& rows) {
  std::vector<std::vector<std::string>> table = {{"task", "optimizer", "state MB",
                                                  "peak GB (torch)", "peak GB (+ workspace)",
                                                  "step ms", "opt. ms", "vs adamw"}};
  constexpr double kMega = 1e6;
  constexpr double kGiga = 1e9;
  for (const Row& row : rows) {
    const lab::SystemsResult& r = row.result;
    const auto gigabytes = [&](std::int64_t more) {
      if (!r.torch_peak_bytes) return std::string("-");
      return fmt::format("{:.2f}", static_cast<double>(*r.torch_peak_bytes + more) / kGiga);
    };
    const double relative = throughput(rows, row);
    table.push_back({row.task, row.optimizer,
                     fmt::format("{:.1f}", static_cast<double>(r.state_bytes) / kMega),
                     gigabytes(0), gigabytes(r.workspace_bytes), fmt::format("{:.1f}", r.step_ms),
                     fmt::format("{:.1f}", r.optimizer_ms),
                     relative > 0 ? fmt::format("{:.2f}x", relative) : "-"});
  }
  return format_table(table, 2);
}

void run(const SystemsArguments& arguments) {
  const std::vector<Row> rows = measure(arguments);
  const std::string json = to_json(arguments, rows).dump(2);
  if (!arguments.out.empty()) {
    const std::string text = json + "\n";
    AtomicFile file(arguments.out, "bench");
    file.write(std::as_bytes(std::span(text.data(), text.size())));
    file.commit();
  }
  fmt::print("{}\n", arguments.json ? json : text_of(rows));
}

}  // namespace

void add_bench_systems_command(CLI::App& bench) {
  const auto a = std::make_shared<SystemsArguments>();
  CLI::App* command = bench.add_subcommand(
      "systems",
      "Measure the paper's compute and memory table: state, peak memory, step time, throughput");
  command->add_option("--tasks", a->tasks, "tasks, separated by commas")
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--optimizers", a->optimizers, "optimizers, separated by commas")
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--scale", a->scale,
                      "a scale defined in the tasks' files, with its own batch: tiny");
  command->add_flag("--loop", a->loop,
                    "also measure RODE without batches, one matrix after the other");
  command
      ->add_option("--device", a->options.device,
                   "device to measure on; auto (default): a GPU if there is one")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  command->add_option("--threads", a->options.threads, "threads of Torch and the engine")
      ->check(whole_number(1, kMaxThreads));
  command
      ->add_option("--warmup", a->options.warmup, "number of warm-up steps before the timed ones")
      ->check(whole_number(0, kMaxCount))
      ->capture_default_str();
  command->add_option("--steps", a->options.steps, "number of timed steps per run")
      ->check(whole_number(1, kMaxCount))
      ->capture_default_str();
  command
      ->add_option("--runs", a->options.runs,
                   "number of runs; the median of their medians is reported")
      ->check(whole_number(1, kMaxCount))
      ->capture_default_str();
  command->add_option("--out", a->out, "also write the JSON to this file");
  command->add_flag("--json", a->json, "print JSON");
  command->add_flag("--quiet", a->quiet, "show no progress");
  command->footer(
      "Examples:\n  rode bench systems --loop --out systems.json\n"
      "  rode bench systems --scale tiny --device cpu --steps 5 --runs 1");
  command->callback([a] { run(*a); });
}

}  // namespace rode::cli
