// SPDX-License-Identifier: Apache-2.0
// `rode step`: one or more steps of any optimizer on tensors from a safetensors file.
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "commands.h"
#include "products_option.h"
#include "step/finite.h"
#include "step/run.h"
#include "validators.h"

namespace rode::cli {
namespace {

struct StepArguments {
  std::string optimizer, preset;
  std::vector<std::string> settings;
  std::string in;
  std::string out;
  std::int64_t steps = 1;
  int threads = 0;
  std::string backend = "cpu";
  std::string device = "cpu";
  std::string route = "matrix";
  std::vector<std::string> overrides;
  std::vector<std::string> layouts;
  std::string schedule = "none";
  std::int64_t warmup = 0;
  std::int64_t total = 0;
  std::string on_non_finite = "refuse";
  std::string on_missing = "refuse";
  bool loop = false;
  std::string products = "auto";
  bool show_routing = false;
  bool json = false;
};

Routing make_routing(const StepArguments& arguments) {
  Routing routing{make_route(arguments.route), {}};
  const std::map<std::string, Treatment> treatments = {
      {"matrix", Treatment::matrix}, {"rest", Treatment::rest}, {"frozen", Treatment::frozen}};
  for (const std::string& text : arguments.overrides) {
    const auto [pattern, value] = pattern_and_value(text, "--override");
    const auto treatment = treatments.find(value);
    if (treatment == treatments.end()) {
      throw UsageError(fmt::format("--override '{}': expected matrix, rest or frozen", text));
    }
    routing.overrides.push_back({pattern, treatment->second});
  }
  return routing;
}

Schedule make_schedule(const StepArguments& arguments) {
  if (arguments.schedule == "none") {
    if (arguments.warmup != 0 || arguments.total != 0) {
      throw UsageError("--warmup and --total need --schedule cosine");
    }
    return Schedule::constant();
  }
  if (arguments.total < 1 || arguments.warmup < 0 || arguments.warmup > arguments.total) {
    throw UsageError(
        fmt::format("--schedule cosine: --total {} and --warmup {}; expected "
                    "total >= 1 and 0 <= warmup <= total",
                    arguments.total, arguments.warmup));
  }
  return Schedule::warmup_cosine(arguments.warmup, arguments.total);
}

OnBadGradient policy(const std::string& text) {
  return text == "skip" ? OnBadGradient::skip : OnBadGradient::refuse;
}

StepPlan make_plan(const StepArguments& arguments) {
  const std::string name =
      arguments.preset.empty() ? arguments.optimizer : arguments.optimizer + "-" + arguments.preset;
  StepPlan plan{make_method(name, arguments.settings),
                make_routing(arguments),
                {},
                make_schedule(arguments),
                arguments.steps};
  if (arguments.device == "cuda") {
    if (arguments.backend == "reference") {
      throw UsageError("--device cuda with --backend reference; the reference runs on the CPU");
    }
    plan.engine.device = Device::cuda;
  }
  plan.engine.threads = arguments.threads;
  plan.engine.on_non_finite = policy(arguments.on_non_finite);
  plan.engine.on_missing = policy(arguments.on_missing);
  plan.engine.batched = !arguments.loop;
  plan.engine.cuda_products = cuda_products_of(arguments.products);
  plan.engine.notify = [](std::string_view text) {
    fmt::print(stderr, "rode: note: {}\n", on_terminal(text));
  };
  return plan;
}

void print_json(const StepArguments& arguments, const StepOutcome& outcome,
                std::int64_t steps_done) {
  const Json json = {{"optimizer", arguments.optimizer},
                     {"backend", arguments.device == "cuda" ? "cuda" : arguments.backend},
                     {"steps", arguments.steps},
                     {"steps_done", steps_done},
                     {"weight_norm", outcome.global.weight_norm},
                     {"update_norm", outcome.global.update_norm},
                     {"update_ratio", outcome.global.update_ratio},
                     {"gradient_norm", outcome.global.gradient_norm},
                     {"state_bytes", outcome.state_bytes},
                     {"workspace_bytes", outcome.workspace_bytes},
                     {"skipped", outcome.skipped}};
  fmt::print("{}\n", json.dump(2));
}

// The table with every name fit for a terminal.
std::string shown_routing(const StepInput& input, const Routing& routing, const Method& method) {
  std::vector<RoutedParameter> routed = input.routed(method, routing);
  std::vector<Parameter> named = input.parameters();
  for (Parameter& parameter : named) parameter.name = on_terminal(parameter.name);
  for (RoutedParameter& entry : routed) entry.reason = on_terminal(entry.reason);
  return routing_table(named, routed, method);
}

void note_skipped(const StepOutcome& outcome, std::int64_t steps) {
  for (const auto& [name, count] : outcome.skipped) {
    fmt::print(stderr, "rode: note: parameter '{}' was skipped in {} of {} step(s)\n",
               on_terminal(name), count, steps);
  }
}

void run(const StepArguments& arguments) {
  const StepPlan plan = make_plan(arguments);
  StepInput input{std::filesystem::path(arguments.in)};
  if (!input.file().has_checksum()) plan.engine.notify(input.file().checksum_note());
  input.set_layouts(arguments.layouts);
  if (arguments.show_routing) {
    // Standard output is for the JSON where that was requested.
    fmt::print(arguments.json ? stderr : stdout, "{}\n",
               shown_routing(input, plan.routing, plan.method));
  }
  check_input(input, plan.routing);
  const auto finish = [&](const StepOutput& output) {
    write_safetensors(arguments.out, output.entries, output.metadata);
  };
  const StepOutcome outcome = arguments.backend == "reference"
                                  ? step_with_reference(input, plan, finish)
                                  : step_with_engine(input, plan, finish);
  note_skipped(outcome, arguments.steps);
  if (arguments.json) print_json(arguments, outcome, input.steps_before() + arguments.steps);
}

}  // namespace

void add_step_command(CLI::App& app) {
  const auto a = std::make_shared<StepArguments>();
  CLI::App* command = app.add_subcommand("step", "Update tensors from a safetensors file");
  command
      ->add_option("--optimizer", a->optimizer,
                   "name of the optimizer, as 'rode optimizers' lists it")
      ->required();
  command->add_option("--preset", a->preset,
                      "preset of the optimizer: rode with preset paper is rode-paper");
  command
      ->add_option("--set", a->settings, "key=value: an option of the optimizer; may be repeated")
      ->allow_extra_args(false);
  command
      ->add_option("--in", a->in,
                   "input file with the tensors param.*, grad.* or grad@<k>.*, and state.*")
      ->required();
  command
      ->add_option("--out", a->out,
                   "output file with param.*, state.* and diag.*; may be the input file")
      ->required();
  command->add_option("--steps", a->steps, "number of steps")
      ->check(whole_number(1, std::uint64_t{1} << 40U))
      ->capture_default_str();
  command
      ->add_option("--threads", a->threads,
                   "number of threads; 0: all cores; the result does not depend on it")
      ->check(whole_number(0, kMaxThreads))
      ->capture_default_str();
  command->add_option("--backend", a->backend, "cpu, or the slow double-precision reference")
      ->check(CLI::IsMember({"cpu", "reference"}))
      ->capture_default_str();
  command->add_option("--device", a->device, "device of the engine: cpu or cuda")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  command
      ->add_option("--route", a->route,
                   "which parameters the matrix rule updates: auto, language, vision, "
                   "all_matrices, lora, matrix, rest or everything")
      ->capture_default_str();
  command
      ->add_option("--override", a->overrides,
                   "PATTERN=matrix|rest|frozen: how parameters with matching names are updated; "
                   "may be repeated, the first match applies")
      ->allow_extra_args(false);
  command
      ->add_option("--layout", a->layouts,
                   "PATTERN=in_out: matrices that are stored fan-in x fan-out; may be repeated")
      ->allow_extra_args(false);
  command
      ->add_option("--schedule", a->schedule, "schedule that multiplies all rates: none or cosine")
      ->check(CLI::IsMember({"none", "cosine"}))
      ->capture_default_str();
  command->add_option("--warmup", a->warmup, "number of warm-up steps of the cosine schedule")
      ->check(whole_number(0, std::uint64_t{1} << 62U));
  command->add_option("--total", a->total, "total number of steps of the cosine schedule")
      ->check(whole_number(1, std::uint64_t{1} << 62U));
  command
      ->add_option("--on-non-finite", a->on_non_finite,
                   "what to do when a gradient holds NaN or Inf")
      ->check(CLI::IsMember({"refuse", "skip"}))
      ->capture_default_str();
  command->add_option("--on-missing", a->on_missing, "what to do when a parameter has no gradient")
      ->check(CLI::IsMember({"refuse", "skip"}))
      ->capture_default_str();
  command->add_flag("--loop", a->loop, "step one matrix after the other, without batches");
  add_products_option(*command, a->products);
  command->add_flag("--show-routing", a->show_routing, "print how each parameter is updated");
  command->add_flag("--json", a->json, "print norms of the last step as JSON");
  command->footer(
      "Example: rode step --optimizer rode --set lr=1e-3 --in in.safetensors --out o.safetensors");
  command->callback([a] { run(*a); });
}

}  // namespace rode::cli
