// SPDX-License-Identifier: Apache-2.0
// `rode bench step`: time, state and workspace of one whole step on a model's shapes.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "bench/common.h"
#include "bench/peers.h"
#include "bench/products.h"
#include "commands.h"
#include "core/cores.h"
#include "products_option.h"
#include "rode/optimizer.h"
#include "rode/version.h"
#include "validators.h"

namespace rode::cli {
namespace {

// Weights and gradients of a model, drawn at random.
struct Tensors {
  std::vector<Buffer> memory;
  std::vector<Parameter> parameters;
};

Tensors allocate(const Model& model, int threads) {
  Tensors tensors;
  tensors.parameters = model.parameters();
  for (Parameter& parameter : tensors.parameters) {
    Buffer& value = tensors.memory.emplace_back(parameter.value.bytes());
    parameter.value.data = value.data();
    Buffer& grad = tensors.memory.emplace_back(parameter.grad.bytes());
    parameter.grad.data = grad.data();
  }
  std::atomic<std::size_t> next{0};
  std::vector<std::jthread> workers;
  workers.reserve(static_cast<std::size_t>(threads));
  for (int t = 0; t < threads; ++t) {
    workers.emplace_back([&] {
      for (std::size_t i = next++; i < tensors.memory.size(); i = next++) {
        const std::size_t count = static_cast<std::size_t>(tensors.parameters[i / 2].value.numel());
        fill_gaussian(tensors.memory[i].floats(), count, 0.02f, i);
      }
    });
  }
  return tensors;
}

struct Result {
  Counts counts;
  Times step;
  Times products;
  double flops = 0;  // of the products of one step; 0 without Newton-Schulz
  std::size_t state_bytes = 0;
  std::size_t workspace_bytes = 0;
};

double timed_step(Optimizer& optimizer, const BenchArguments& arguments) {
  const auto start = std::chrono::steady_clock::now();
  step_as_asked(optimizer, arguments);
  const std::chrono::duration<double, std::milli> elapsed =
      std::chrono::steady_clock::now() - start;
  return elapsed.count();
}

Result measure(const BenchArguments& arguments, const Model& model, const Method& method,
               int threads) {
  const Tensors tensors = allocate(model, threads);
  const Routing routing{model.route, {}};
  const auto routed = route_parameters(tensors.parameters, routing);
  Result result;
  result.counts = count_elements(tensors.parameters, routed);

  EngineOptions engine;
  engine.threads = threads;
  engine.batched = !arguments.loop;
  engine.phases = arguments.phases;
  engine.cuda_products = cuda_products_of(arguments.products);
  Optimizer optimizer(tensors.parameters, method, routing, engine);
  std::optional<Products> products;
  auto matrices = planned_matrices(tensors.parameters, method, routing);
  if (!matrices.empty()) {
    products.emplace(std::move(matrices), threads);
    result.flops = products->flops();
  }
  for (int i = 0; i < arguments.warmup; ++i) {
    (void)timed_step(optimizer, arguments);
    if (products) (void)products->run_ms();
  }
  // Alternating, so that a machine that slows down slows both.
  for (int i = 0; i < arguments.repeat; ++i) {
    result.step.ms.push_back(timed_step(optimizer, arguments));
    if (products) result.products.ms.push_back(products->run_ms());
  }
  result.state_bytes = optimizer.state_bytes();
  result.workspace_bytes = optimizer.workspace_bytes();
  return result;
}

std::string cpu_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const std::size_t colon = line.find(':');
    if (line.starts_with("model name") && colon != std::string::npos) {
      const std::size_t text = line.find_first_not_of(" \t", colon + 1);
      return text == std::string::npos ? "unknown" : line.substr(text);
    }
  }
  return "unknown";
}

Json to_json(const BenchArguments& arguments, const Model& model, const Method& method, int threads,
             Result& result) {
  Json json = {{"shapes", model.name},
               {"optimizer", arguments.optimizer},
               {"options", options_json(method)},
               {"route", to_string(model.route)},
               {"backend", "cpu"},
               {"batched", !arguments.loop},
               {"phases", arguments.phases},
               {"threads", threads},
               {"repeat", arguments.repeat},
               {"warmup", arguments.warmup},
               {"managed_parameters", result.counts.managed},
               {"delegated_parameters", result.counts.delegated}};
  add_times(json, result.step);
  const double median = json["median_ms"].get<double>();
  json["state_bytes"] = result.state_bytes;
  json["workspace_bytes"] = result.workspace_bytes;
  if (result.flops > 0) {
    const double products = result.products.quantile(0.5);
    json["blas_share"] = products / median;
    json["products_ms"] = products;
    json["products_spread_ms"] = result.products.quantile(1) - result.products.quantile(0);
    json["products_flops"] = result.flops;
    json["products_gflops"] = result.flops / products * 1e-6;
    json["gflops"] = result.flops / median * 1e-6;
  } else {
    for (const char* key : {"blas_share", "products_ms", "gflops"}) json[key] = nullptr;
  }
  json["machine"] = {{"cpu", cpu_name()}, {"cores", available_cores()}};
  json["version"] = version();
  return json;
}

void print_report(const Json& json) {
  const auto number = [&](const char* key) { return json[key].get<double>(); };
  fmt::print("{} on {}: {} thread(s), {}\n", json["optimizer"].get<std::string>(),
             json["shapes"].get<std::string>(), json["threads"].get<int>(),
             json["machine"]["cpu"].get<std::string>());
  std::vector<std::vector<std::string>> rows = {
      {"step, median", fmt::format("{:.2f} ms", number("median_ms"))},
      {"step, spread (max - min)", fmt::format("{:.2f} ms", number("spread_ms"))},
      {"step, quartiles", fmt::format("{:.2f} .. {:.2f} ms", number("q1_ms"), number("q3_ms"))},
      {"state", fmt::format("{:.1f} MB", number("state_bytes") / 1e6)},
      {"workspace", fmt::format("{:.1f} MB", number("workspace_bytes") / 1e6)}};
  if (!json["blas_share"].is_null()) {
    rows.push_back({"products by the BLAS alone",
                    fmt::format("{:.2f} ms, {:.0f} GFLOP/s", number("products_ms"),
                                number("products_gflops"))});
    rows.push_back(
        {"their share of the step", fmt::format("{:.1f} %", 100 * number("blas_share"))});
  }
  if (json.contains("peers")) {
    for (const auto& [name, peer] : json["peers"].items()) {
      if (!peer.is_object() || !peer.contains("median_ms")) continue;
      const double ms = peer["median_ms"].get<double>();
      rows.push_back({"peer " + name,
                      fmt::format("{:.2f} ms, {:.2f} x this step", ms, ms / number("median_ms"))});
    }
  }
  fmt::print("{}", format_table(rows));
}

void run_cpu(BenchArguments arguments) {
  if (arguments.repeat == 0) arguments.repeat = 3;
  if (arguments.warmup < 0) arguments.warmup = 1;
  const Method method = make_method(arguments.optimizer, arguments.settings);
  const Model model = model_by_name(arguments.shapes);
  const int threads = arguments.threads > 0 ? arguments.threads : available_cores();
  // Memory of our own measurement is gone before the peers allocate theirs.
  Result result = measure(arguments, model, method, threads);
  Json json = to_json(arguments, model, method, threads, result);
  if (arguments.with_peers) {
    json["peers"] = run_peers(
        {arguments.peers.empty() ? find_peers("torch_step.py") : arguments.peers,
         arguments.peers_only, peer_shapes(model), threads, arguments.repeat, arguments.warmup});
  }
  if (arguments.json) {
    fmt::print("{}\n", json.dump(2));
  } else {
    print_report(json);
  }
}

void run(const BenchArguments& arguments) {
  if (arguments.table && arguments.backend != "cuda") {
    throw UsageError("--table needs --backend cuda");
  }
  if (arguments.backend == "cuda") {
    run_cuda_bench(arguments);
  } else {
    run_cpu(arguments);
  }
}

}  // namespace

void add_bench_command(CLI::App& app) {
  const auto a = std::make_shared<BenchArguments>();
  CLI::App* bench = app.add_subcommand("bench", "Measure time and memory of optimizers");
  bench->require_subcommand(1);
  CLI::App* command = bench->add_subcommand(
      "step", "Measure time, state and workspace of one step on a model's shapes");
  CLI::Option* shapes = command->add_option("--shapes", a->shapes, std::string(kShapesHelp));
  CLI::Option* optimizer = command->add_option(
      "--optimizer", a->optimizer, "name of the optimizer, as 'rode optimizers' lists it");
  CLI::Option* settings = command
                              ->add_option("--set", a->settings,
                                           "key=value: an option of the optimizer; may be repeated")
                              ->allow_extra_args(false);
  command->add_option("--backend", a->backend, "device to measure on: cpu or cuda")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  command
      ->add_flag("--table,--all", a->table,
                 "CUDA: measure 21 combinations of shapes, optimizer and options, instead of "
                 "--shapes and --optimizer")
      ->excludes(shapes)
      ->excludes(optimizer)
      ->excludes(settings);
  command->add_option("--threads", a->threads, "number of threads; 0: all cores")
      ->check(whole_number(0, kMaxThreads))
      ->capture_default_str();
  command->add_option("--repeat", a->repeat, "number of measured steps (default 3, on CUDA 50)")
      ->check(whole_number(1, 100'000));
  command
      ->add_option("--warmup", a->warmup,
                   "number of warm-up steps before them (default 1, on CUDA 10)")
      ->check(whole_number(0, 100'000));
  CLI::Option* peers =
      command
          ->add_option(
              "--peers", a->peers,
              "also time other implementations with this script (default: the one in bench/peers)")
          ->expected(0, 1);
  command
      ->add_option("--peers-only", a->peers_only,
                   "which of the script's implementations to time, separated by commas")
      ->needs("--peers");
  command->add_flag("--loop", a->loop, "step one matrix after the other, without batches");
  command->add_flag("--phases", a->phases,
                    "make each step in three calls: prepare, compute, apply");
  command->add_option("--dtype", a->dtype, "CUDA: type of the weights and gradients")
      ->check(CLI::IsMember({"f32", "bf16"}))
      ->capture_default_str();
  add_products_option(*command, a->products);
  command->add_flag("--json", a->json, "print JSON");
  command->footer("Example: rode bench step --shapes qwen2-114m --optimizer rode");
  command->callback([a, shapes, optimizer, peers] {
    for (const CLI::Option* option : {shapes, optimizer}) {
      if (!a->table && option->count() == 0) throw CLI::RequiredError(option->get_name());
    }
    a->with_peers = peers->count() > 0;
    run(*a);
  });
  add_bench_systems_command(*bench);
}

}  // namespace rode::cli
