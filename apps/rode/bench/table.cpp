// SPDX-License-Identifier: Apache-2.0
// `rode bench step --backend cuda`: one step, or a table of them, next to the machine's ceilings.
#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "bench/common.h"
#include "bench/cuda.h"
#include "bench/peers.h"
#include "core/cores.h"
#include "rode/error.h"
#include "rode/optimizer.h"
#include "rode/version.h"
#include "rules/cost.h"

namespace rode::cli {
namespace {

// What --table runs.
struct Row {
  const char* shapes;
  const char* optimizer;
  std::vector<std::string> settings = {};  // none: the defaults
  const char* dtype = "f32";
  const char* products = nullptr;  // null: those of --products
};

std::vector<Row> table_rows() {
  const std::string four = "coefficients=four", int8 = "state_dtype=int8";
  return {
      {"qwen2-114m", "rode"},
      {"qwen2-114m", "rode", {four}},
      {"qwen2-114m", "rode", {four, int8}},
      {"gpt2", "rode"},
      {"gpt2", "rode", {four}},
      {"resnet50", "rode"},
      {"resnet50", "rode", {four}},
      {"qwen2-1.5b", "rode"},
      {"qwen2-1.5b", "rode", {int8}},
      {"qwen2-1.5b", "rode", {four}},
      {"qwen2-1.5b", "rode", {four, int8}},
      {"qwen2-1.5b", "rode", {"reproject=final"}},
      {"qwen2-114m", "muon-rms"},
      {"qwen2-114m", "muon-rms", {four}},
      {"qwen2-1.5b", "muon-rms"},
      {"qwen2-1.5b", "muon-rms", {four}},
      {"qwen2-114m", "rode", {}, "bf16"},
      {"qwen2-1.5b", "rode", {}, "bf16"},
      {"qwen2-1.5b", "rode", {four, int8}, "bf16"},
      {"qwen2-114m", "rode", {}, "f32", "tensor-cores"},
      {"qwen2-114m", "rode", {four}, "f32", "tensor-cores"},
  };
}

// What a step cannot go below: operations at the rate of large products, bytes at that of a
// copy. A managed number is read as W, g, B and written as W, B, one that AdamW steps as W, g, two
// moments, and W and the moments. Momentum and moments are fp32, or the first of them int8.
struct Work {
  double full_flops = 0;
  double symmetric_flops = 0;  // one triangle of what is symmetric
  double bytes = 0;            // 0: not counted for this rule
};

Work work_of(const Model& model, const Method& method, const std::string& dtype) {
  const std::vector<Parameter> parameters = model.parameters();
  const Routing routing{model.route, {}};
  const Counts counts = count_elements(parameters, route_parameters(parameters, routing));
  Work work;
  const auto matrices = planned_matrices(parameters, method, routing);
  const bool adamw = method.name() == "adamw";
  if (matrices.empty() && !adamw) return work;
  for (const PlannedMatrix& matrix : matrices) {
    const auto flops = rules::newton_schulz_flops(matrix.rows, matrix.columns, matrix.iterations);
    work.full_flops += flops.full;
    work.symmetric_flops += flops.symmetric;
  }
  const double given = 3.0 * (dtype == "bf16" ? 2 : 4);  // W twice, g
  const Json options = options_json(method);
  const double first = options.value("state_dtype", Json()) == "int8" ? 2 : 8;  // read and written
  work.bytes = (given + first + (adamw ? 8 : 0)) * static_cast<double>(counts.managed) +
               (given + first + 8) * static_cast<double>(counts.delegated);
  return work;
}

Json floor_ms(double flops, double bytes, const Json& ceilings) {
  const Json& rate = ceilings["matmul_tflops"];
  if (bytes == 0 || (flops > 0 && rate.is_null())) return nullptr;
  const double products = flops > 0 ? flops / (rate.get<double>() * 1e12) : 0;
  return 1e3 * (products + bytes / (ceilings["copy_tbps"].get<double>() * 1e12));
}

Json machine_json() {
  const CudaMachine machine = describe_cuda_machine();
  return {{"device", machine.device},
          {"capability", machine.capability},
          {"driver", machine.driver},
          {"runtime", machine.runtime},
          {"memory_bytes", machine.memory_bytes}};
}

Json ceilings_json() {
  const CudaCeilings ceilings = measure_cuda_ceilings();
  Json json = {
      {"matmul_tflops", nullptr}, {"matmul_by", nullptr}, {"copy_tbps", ceilings.copy_tbps}};
  if (ceilings.matmul_tflops) {
    json["matmul_tflops"] = *ceilings.matmul_tflops;
    json["matmul_by"] = "cublas";
  }
  return json;
}

Json measure(const BenchArguments& arguments) {
  const Method method = make_method(arguments.optimizer, arguments.settings);
  const Model model = model_by_name(arguments.shapes);
  const std::vector<Parameter> parameters = model.parameters();
  const Counts counts = count_elements(parameters, route_parameters(parameters, {model.route, {}}));
  CudaSteps steps = time_cuda_steps(arguments, model, method);
  Json json = {{"shapes", model.name},
               {"optimizer", arguments.optimizer},
               {"set", arguments.settings},
               {"options", options_json(method)},
               {"route", to_string(model.route)},
               {"backend", "cuda"},
               {"dtype", arguments.dtype},
               {"products", arguments.products},
               {"batched", !arguments.loop},
               {"phases", arguments.phases},
               {"repeat", arguments.repeat},
               {"warmup", arguments.warmup},
               {"input_sets", steps.sets},
               {"managed_parameters", counts.managed},
               {"delegated_parameters", counts.delegated}};
  add_times(json, steps.step);
  json["mean_ms"] = steps.mean_ms;
  json["state_bytes"] = steps.state_bytes;
  json["workspace_bytes"] = steps.workspace_bytes;
  return json;
}

// Once the ceilings are known, which torch may have had to measure.
void add_floors(Json& json, const BenchArguments& arguments, const Json& ceilings) {
  const Work work = work_of(model_by_name(arguments.shapes),
                            make_method(arguments.optimizer, arguments.settings), arguments.dtype);
  json["newton_schulz_flops"] = work.full_flops;
  json["floor_ms"] = floor_ms(work.full_flops, work.bytes, ceilings);
  json["symmetric_floor_ms"] = floor_ms(work.symmetric_flops, work.bytes, ceilings);
}

// A peer that cannot run is a reason in the report, not an error: our own figures remain.
Json peers_json(const BenchArguments& arguments, const std::string& shapes, int sets) {
  constexpr int kRepeat = 20;  // some take a tenth of a second per step
  constexpr int kWarmup = 5;
  const std::string script =
      arguments.peers.empty() ? find_peers("torch_cuda_step.py") : arguments.peers;
  try {
    return run_peers({script,
                      arguments.peers_only,
                      peer_shapes(model_by_name(shapes)),
                      available_cores(),
                      std::min(arguments.repeat, kRepeat),
                      std::min(arguments.warmup, kWarmup),
                      {"--sets", std::to_string(sets)}});
  } catch (const Error& error) {
    return {{"skipped", error.what()}};
  }
}

void adopt_matmul_rate(Json& ceilings, const Json& peers) {
  if (!ceilings["matmul_tflops"].is_null() || !peers.contains("matmul_tflops")) return;
  ceilings["matmul_tflops"] = peers["matmul_tflops"];
  ceilings["matmul_by"] = "torch";
}

// ---- Text -------------------------------------------------------------------------------

std::string number_or_dash(const Json& value) {
  return value.is_null() ? "-" : fmt::format("{:.2f}", value.get<double>());
}

void print_machine(const Json& json) {
  const Json& ceilings = json["ceilings"];
  fmt::print("{} (driver {}, CUDA {}): copy {:.2f} TB/s, bf16 products {}\n",
             json["device"].get<std::string>(), json["driver"].get<std::string>(),
             json["runtime"].get<std::string>(), ceilings["copy_tbps"].get<double>(),
             ceilings["matmul_tflops"].is_null()
                 ? "not measured (neither cuBLAS nor torch was found)"
                 : fmt::format("{:.0f} TFLOP/s by {}", ceilings["matmul_tflops"].get<double>(),
                               ceilings["matmul_by"].get<std::string>()));
}

void print_rows(const Json& rows) {
  std::vector<std::vector<std::string>> table = {{"shapes", "optimizer", "median ms", "spread",
                                                  "floor", "symmetric", "state MB",
                                                  "workspace MB"}};
  for (const Json& row : rows) {
    std::string name = row["optimizer"].get<std::string>();
    for (const Json& setting : row["set"]) name += " " + setting.get<std::string>();
    if (row["dtype"] != "f32") name += ", " + row["dtype"].get<std::string>();
    if (row["products"] != "auto") name += ", " + row["products"].get<std::string>();
    table.push_back({row["shapes"].get<std::string>(), std::move(name),
                     fmt::format("{:.3f}", row["median_ms"].get<double>()),
                     fmt::format("{:.3f}", row["spread_ms"].get<double>()),
                     number_or_dash(row["floor_ms"]), number_or_dash(row["symmetric_floor_ms"]),
                     fmt::format("{:.1f}", row["state_bytes"].get<double>() / 1e6),
                     fmt::format("{:.1f}", row["workspace_bytes"].get<double>() / 1e6)});
  }
  fmt::print("{}", format_table(table, 2));
}

void print_peers(const std::string& shapes, const Json& peers) {
  if (peers.contains("skipped")) {
    fmt::print("peers on {}: skipped: {}\n", shapes, peers["skipped"].get<std::string>());
    return;
  }
  fmt::print("peers on {}, torch {}:\n", shapes, peers.value("torch", std::string("unknown")));
  std::vector<std::vector<std::string>> table;
  for (const auto& [name, peer] : peers.items()) {
    if (!peer.is_object()) continue;
    table.push_back({"  " + name, peer.contains("median_ms")
                                      ? fmt::format("{:.3f} ms", peer["median_ms"].get<double>())
                                      : peer.value("skipped", std::string("no time"))});
  }
  fmt::print("{}", format_table(table));
}

void print_json(const Json& json) { fmt::print("{}\n", json.dump(2)); }

void run_one(const BenchArguments& arguments) {
  Json machine = machine_json();
  Json ceilings = ceilings_json();
  Json json = measure(arguments);
  Json peers;
  if (arguments.with_peers) {
    peers = peers_json(arguments, arguments.shapes, json["input_sets"].get<int>());
    adopt_matmul_rate(ceilings, peers);
  }
  add_floors(json, arguments, ceilings);
  json.update(machine);
  json["ceilings"] = std::move(ceilings);
  if (arguments.with_peers) json["peers"] = std::move(peers);
  json["version"] = version();
  if (arguments.json) return print_json(json);
  print_machine(json);
  print_rows(Json::array({json}));
  if (arguments.with_peers) print_peers(arguments.shapes, json["peers"]);
}

void run_table(const BenchArguments& arguments) {
  Json json = {{"backend", "cuda"}};
  json.update(machine_json());
  Json ceilings = ceilings_json();
  std::vector<BenchArguments> rows;
  Json results = Json::array();
  Json peers = Json::object();
  for (const Row& wanted : table_rows()) {
    BenchArguments row = arguments;
    row.shapes = wanted.shapes;
    row.optimizer = wanted.optimizer;
    row.settings = wanted.settings;
    row.dtype = wanted.dtype;
    if (wanted.products != nullptr) row.products = wanted.products;
    results.push_back(measure(row));
    // A table takes minutes: its rows are printed as they finish.
    fmt::print(stderr, "rode: note: {} {} on {}, {}, products {}: {:.3f} ms\n", row.optimizer,
               fmt::join(row.settings, " "), row.shapes, row.dtype, row.products,
               results.back()["median_ms"].get<double>());
    rows.push_back(std::move(row));
  }
  if (arguments.with_peers) {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const std::string& shapes = rows[i].shapes;
      if (peers.contains(shapes)) continue;
      peers[shapes] = peers_json(arguments, shapes, results[i]["input_sets"].get<int>());
      adopt_matmul_rate(ceilings, peers[shapes]);
    }
  }
  for (std::size_t i = 0; i < rows.size(); ++i) add_floors(results[i], rows[i], ceilings);
  json["ceilings"] = std::move(ceilings);
  json["rows"] = std::move(results);
  if (arguments.with_peers) json["peers"] = std::move(peers);
  json["version"] = version();
  if (arguments.json) return print_json(json);
  print_machine(json);
  print_rows(json["rows"]);
  if (!arguments.with_peers) return;
  for (const auto& [shapes, found] : json["peers"].items()) print_peers(shapes, found);
}

}  // namespace

void run_cuda_bench(const BenchArguments& given) {
  BenchArguments arguments = given;
  if (arguments.repeat == 0) arguments.repeat = 50;
  if (arguments.warmup < 0) arguments.warmup = 10;
  if (arguments.table) {
    run_table(arguments);
  } else {
    // Wrong usage is reported before the device is used.
    (void)make_method(arguments.optimizer, arguments.settings);
    (void)model_by_name(arguments.shapes);
    run_one(arguments);
  }
}

}  // namespace rode::cli
