// SPDX-License-Identifier: Apache-2.0
// Newton-Schulz on CUDA by itself: agreement of half precision with fp32, and the time and
// rate of every launch.
//
//   bench_cuda_newton_schulz [check[-held | -behind | -small | -small-behind | -spectra]]
//                            [warm=SECONDS] [four] [fp8] [SHAPES...]
//
// four, fp8: the shapes that follow are timed with coefficients=four, ns_dtype=fp8.
// SHAPES: ROWSxCOLSxCOUNT,... or a model, of which the first batch is timed. Tiles of check-behind
// are reprojected behind the products; the small checks are for compute-sanitizer. warm: products
// run that long before any is timed, so that the chip's clock is the one its power limit leaves.
#include "cuda_newton_schulz.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include <cuda_runtime_api.h>

#include "backend/cuda/device/check.h"
#include "backend/cuda/newton_schulz/newton_schulz.h"
#include "rode/error.h"
#include "rules/cost.h"
#include "rules/newton_schulz_rule.h"

namespace {

using namespace rode;
using namespace rode::cuda;
using namespace rode::bench;

const Shapes kHeld = {{768, 768},   {2048, 768}, {768, 2048},  {256, 768}, {768, 256},
                      {1536, 1536}, {129, 257},  {64, 147},    {300, 300}, {512, 4608},
                      {1000, 2048}, {2048, 768}, {4100, 1536}, {72, 64}};
// Two of a shape: they share items of symmetric products, and one tensor map.
const Shapes kSmall = {{256, 256}, {129, 257}, {256, 256}};
const Shapes kBehind = {{8960, 1536}, {1536, 8960}, {4500, 1333},
                        {256, 1536},  {8960, 1536}, {1536, 1536}};
const Shapes kSpectra = {{768, 768}, {2048, 768}, {768, 2048}};
const Shapes kSmallBehind = {{70000, 72}, {70000, 72}};

std::vector<NsMatrix> model(const std::string& name) {
  std::vector<NsMatrix> list;
  const auto add = [&](std::int64_t rows, std::int64_t cols, int count) {
    for (int i = 0; i < count; ++i) list.push_back({.rows = rows, .cols = cols, .steps = 5});
  };
  if (name == "114m") {
    for (int layer = 0; layer < 12; ++layer) {
      add(768, 768, 2);
      add(256, 768, 2);
      add(2048, 768, 2);
      add(768, 2048, 1);
    }
  } else if (name == "gpt2") {
    for (int layer = 0; layer < 12; ++layer) {
      add(2304, 768, 1);
      add(768, 768, 1);
      add(3072, 768, 1);
      add(768, 3072, 1);
    }
  } else if (name == "1.5b") {
    for (int layer = 0; layer < 28; ++layer) {
      add(1536, 1536, 2);
      add(256, 1536, 2);
      add(8960, 1536, 2);
      add(1536, 8960, 1);
    }
  } else {
    std::size_t at = 0;
    while (at < name.size()) {
      long rows = 0, cols = 0;
      int count = 0, read = 0;
      if (std::sscanf(name.c_str() + at, "%ldx%ldx%d%n", &rows, &cols, &count, &read) != 3) {
        throw Error(ErrorKind::invalid_argument, "bench",
                    "'" + name + "' is neither 114m, gpt2, 1.5b nor ROWSxCOLSxCOUNT[,...]");
      }
      add(rows, cols, count);
      at += static_cast<std::size_t>(read) + 1;
    }
  }
  return list;
}

// FLOPs of a launch over some of the matrices: full, whatever symmetry saves.
double full_flops(const std::string& name, const std::vector<NsMatrix>& matrices,
                  const std::vector<int>& members) {
  double sum = 0;
  for (const int i : members) {
    const NsMatrix& matrix = matrices[static_cast<std::size_t>(i)];
    const auto n = static_cast<double>(std::min(matrix.rows, matrix.cols));
    const auto m = static_cast<double>(std::max(matrix.rows, matrix.cols));
    if (name == "gram, polynomial") {
      sum += 2 * m * n * n + 2 * n * n * n;
    } else if (name == "gram and factors") {
      continue;  // stretches of several lengths have this name: no rate
    } else {
      sum += name == "polynomial" || name == "factor" ? 2 * n * n * n : 2 * m * n * n;
    }
  }
  return sum;
}

cudaEvent_t recorded(cudaStream_t stream) {
  cudaEvent_t event = nullptr;
  RODE_CUDA_CHECK(cudaEventCreate(&event));
  RODE_CUDA_CHECK(cudaEventRecord(event, stream));
  return event;
}

double between(cudaEvent_t from, cudaEvent_t to) {  // milliseconds
  float ms = 0;
  RODE_CUDA_CHECK(cudaEventElapsedTime(&ms, from, to));
  return static_cast<double>(ms);
}

double median(std::vector<double> list) {
  std::sort(list.begin(), list.end());
  return list[list.size() / 2];
}

void warm_up(const NewtonSchulz& ns, std::size_t batch, cudaStream_t stream, double seconds) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  while (std::chrono::duration<double>(Clock::now() - begin).count() < seconds) {
    for (int i = 0; i < 8; ++i) ns.run(batch, stream);
    RODE_CUDA_CHECK(cudaStreamSynchronize(stream));
  }
}

void time_model(const std::string& name, NsDType dtype, bool sphere, Reproject reproject,
                NsForm form, double warm_seconds, CudaProducts products, Coefficients set) {
  std::vector<NsMatrix> matrices = model(name);
  for (NsMatrix& m : matrices) {
    m.dtype = dtype;
    m.sphere = sphere;
    m.reproject = reproject;
    m.form = form;
    m.coefficients = set;
    m.steps = rules::own_ns_steps(set);
  }
  const NewtonSchulz ns(matrices, std::size_t{512} << 20, true, products);
  all_ones(ns, matrices.size());
  // Random bits of small numbers everywhere: zeros would run too fast. One start serves all.
  const auto fill = [&](std::size_t batch) {
    std::map<std::pair<std::int64_t, std::int64_t>, std::vector<float>> made;
    for (const int i : ns.batches()[batch]) {
      const NsMatrix& m = matrices[static_cast<std::size_t>(i)];
      auto& values = made[{m.rows, m.cols}];
      if (values.empty()) values = unit_matrix(m.rows, m.cols);
      put(ns.slot(i).start, ns.slot(i), m.rows, m.cols, values.data());
      if (sphere)
        put(ns.slot(i).direction, of_direction(ns.slot(i)), m.rows, m.cols, values.data());
    }
  };
  cudaStream_t stream = nullptr;
  RODE_CUDA_CHECK(cudaStreamCreate(&stream));
  // Batches share their memory: one is enough, and the numbers in it are its own.
  const std::vector<int>& members = ns.batches().front();
  fill(0);
  warm_up(ns, 0, stream, warm_seconds);
  constexpr int kRepeats = 6;
  std::vector<std::pair<std::string, cudaEvent_t>> marks;
  const auto mark = [&](const char* what) { marks.emplace_back(what, recorded(stream)); };
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    mark("");
    ns.run(0, stream, mark);
  }
  RODE_CUDA_CHECK(cudaStreamSynchronize(stream));
  std::map<std::string, std::vector<double>> times;
  for (std::size_t i = marks.size() / kRepeats; i < marks.size(); ++i) {
    if (marks[i].first.empty()) continue;
    times[marks[i].first].push_back(between(marks[i - 1].second, marks[i].second));
  }
  // The whole as a graph.
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  RODE_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  ns.run(0, stream);
  RODE_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
  RODE_CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
  warm_up(ns, 0, stream, warm_seconds);
  std::vector<double> wholes;
  for (int i = 0; i < 25; ++i) {
    const cudaEvent_t from = recorded(stream);
    RODE_CUDA_CHECK(cudaGraphLaunch(exec, stream));
    const cudaEvent_t to = recorded(stream);
    RODE_CUDA_CHECK(cudaStreamSynchronize(stream));
    wholes.push_back(between(from, to));
  }
  // A run starts from what the one before left; NaN would only look fast.
  const NsMatrix& any = matrices[static_cast<std::size_t>(members.front())];
  const NsSlot& slot = ns.slot(members.front());
  for (const float v : get(slot.iterate, slot, any.rows, any.cols)) {
    if (!std::isfinite(v)) {
      throw Error(ErrorKind::non_finite, "bench", "the iterations of " + name + " diverged");
    }
  }
  double full = 0, symmetric = 0;
  for (const int i : members) {
    const NsMatrix& matrix = matrices[static_cast<std::size_t>(i)];
    const auto flops = rules::newton_schulz_flops(matrix.rows, matrix.cols, matrix.steps);
    full += flops.full;
    symmetric += flops.symmetric;
  }
  const double whole = median(wholes);
  std::printf(
      "%s %s %s%s: %zu of %zu matrices, the first of %zu batches: graph %.3f ms; %.0f TFLOP/s "
      "symmetric, %.0f full; workspace %.0f MB\n",
      name.c_str(), sphere ? (reproject == Reproject::guarded ? "guarded" : "final") : "muon",
      name_of(dtype), set == Coefficients::four ? " four" : "", members.size(), matrices.size(),
      ns.batches().size(), whole, symmetric / whole / 1e9, full / whole / 1e9,
      static_cast<double>(ns.workspace_bytes()) / 1e6);
  for (const auto& [what, list] : times) {
    const double time = median(list), flops = full_flops(what, matrices, members);
    std::printf("   %-28s %8.1f us", what.c_str(), time * 1e3);
    if (flops > 0) std::printf("  %6.0f TFLOP/s of full", flops / time / 1e9);
    std::printf("\n");
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    int result = 0;
    double warm = 0;
    CudaProducts products = CudaProducts::automatic;
    Coefficients set = Coefficients::jordan;
    NsDType dtype = NsDType::bf16;
    for (int i = 1; i < argc; ++i) {
      const std::string what = argv[i];
      if (what == "tensor-cores") products = CudaProducts::tensor_cores;
      if (what == "plain") products = CudaProducts::plain;
      if (what == "four") set = Coefficients::four;
      if (what == "fp8") dtype = NsDType::fp8;
      if (what == "four" || what == "fp8") continue;
      if (what == "tensor-cores" || what == "plain") continue;
      if (what == "check" || what == "check-held") result |= check(kHeld, products);
      if (what == "check" || what == "check-behind") result |= check(kBehind, products);
      if (what == "check-small") result |= check(kSmall, products);
      if (what == "check-small-behind") result |= check(kSmallBehind, products);
      if (what == "check-spectra") result |= check_spectra(kSpectra);
      if (what.starts_with("check")) continue;
      if (std::sscanf(what.c_str(), "warm=%lf", &warm) == 1) continue;
      const auto time = [&](bool sphere, Reproject reproject, NsForm form) {
        time_model(what, dtype, sphere, reproject, form, warm, products, set);
      };
      time(true, Reproject::guarded, NsForm::automatic);
      time(false, Reproject::final, NsForm::standard);
      time(false, Reproject::final, NsForm::automatic);
    }
    return result;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
