// SPDX-License-Identifier: Apache-2.0
// What `rode bench step` shares between backends: its arguments, times, and descriptions of a step.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model_shapes.h"
#include "rode/method.h"
#include "rode/parameter.h"
#include "rode/routing.h"
#include "support.h"

namespace rode::cli {

struct BenchArguments {
  std::string shapes;
  std::string optimizer;
  std::string backend = "cpu";
  std::string dtype = "f32";  // CUDA: of weights and gradients
  std::vector<std::string> settings;
  int threads = 0;
  int repeat = 0;   // 0: 3 on the CPU, 50 on CUDA
  int warmup = -1;  // negative: 1 on the CPU, 10 on CUDA
  bool loop = false;
  bool phases = false;            // prepare, compute and apply instead of step
  std::string products = "auto";  // CUDA: which kernels multiply
  bool table = false;
  bool json = false;
  bool with_peers = false;
  std::string peers;  // script; empty: the backend's own
  std::string peers_only;
};

// One step, whole or in phases.
void step_as_asked(Optimizer& optimizer, const BenchArguments& arguments);

struct Times {
  std::vector<double> ms;

  double quantile(double p);  // linear between the two nearest
};

// How many elements the matrix rule steps, and the rule of the rest.
struct Counts {
  std::int64_t managed = 0;
  std::int64_t delegated = 0;
};
Counts count_elements(const std::vector<Parameter>& parameters,
                      const std::vector<RoutedParameter>& routed);

// The model as a script of peers reads it.
Json peer_shapes(const Model& model);

// Median, spread (max - min), quartiles and extremes, under the keys of the report.
void add_times(Json& json, Times& times);
Json options_json(const Method& method);

// `rode bench step --backend cuda`: one step, or the table of rows.
void run_cuda_bench(const BenchArguments& arguments);

}  // namespace rode::cli
