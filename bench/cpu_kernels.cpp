// SPDX-License-Identifier: Apache-2.0
// Times the CPU backend's loops (bytes/s) and Newton-Schulz in each form (FLOP/s), one thread.
#include <cmath>
#include <random>
#include <vector>

#include <benchmark/benchmark.h>

#include "backend/cpu/blas.h"
#include "backend/cpu/loops.h"
#include "backend/cpu/newton_schulz.h"
#include "rules/cost.h"

namespace rode::cpu {
namespace {

std::vector<float> gaussian(std::size_t count, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& x : values) x = normal(generator);
  return values;
}

// 64 MiB an array: twice the last-level cache of a small server, so that memory is measured.
constexpr std::size_t kElements = std::size_t{1} << 24;

void measure_pass(benchmark::State& state) {
  const auto w = gaussian(kElements, 1), b = gaussian(kElements, 2), g = gaussian(kElements, 3);
  rules::MatrixProducts products;
  for (auto _ : state) {
    add_products(w.data(), b.data(), g.data(), static_cast<std::int64_t>(kElements), products);
    benchmark::DoNotOptimize(products);
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(3 * 4 * kElements));
}
BENCHMARK(measure_pass)->Unit(benchmark::kMillisecond);

void adamw_pass(benchmark::State& state) {
  auto w = gaussian(kElements, 1), m = gaussian(kElements, 2), v = gaussian(kElements, 3);
  const auto g = gaussian(kElements, 4);
  for (float& x : v) x *= x;
  float* const moments[] = {m.data(), v.data()};
  const auto c = rules::AdamW::coefficients({1e-3, 1e-2, 0.9, 0.95, 1e-8, 1}, 1, 10);
  for (auto _ : state) {
    run_elements(c, w.data(), g.data(), moments, w.data(), static_cast<std::int64_t>(kElements));
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(7 * 4 * kElements));
}
BENCHMARK(adamw_pass)->Unit(benchmark::kMillisecond);

// Every form is counted with the FLOPs of the standard one, so that rates compare times.
void newton_schulz_form(benchmark::State& state, NsForm form, NsDType dtype) {
  const SingleThreadedBlas single;
  const std::int64_t rows = state.range(0), cols = state.range(1);
  const NsPlan plan =
      plan_newton_schulz(rows, cols, 5, Coefficients::jordan, dtype, form, true, Reproject::final);
  const auto count = static_cast<std::size_t>(rows * cols);
  auto start = gaussian(count, 1);
  scale(start.data(), static_cast<float>(1 / std::sqrt(sum_of_squares(start.data(), rows * cols))),
        rows * cols);
  std::vector<float> workspace(ns_workspace_floats(plan));
  std::vector<double> partial(static_cast<std::size_t>(2 * slice_count(rows * cols)));
  Team alone(0);
  for (auto _ : state) {
    std::copy(start.begin(), start.end(), workspace.begin());
    const NsResult result = newton_schulz(alone, plan, nullptr, workspace.data(), partial.data());
    benchmark::DoNotOptimize(result.iterate);
  }
  state.counters["FLOP/s"] =
      benchmark::Counter(rules::newton_schulz_flops(rows, cols, plan.steps).symmetric,
                         benchmark::Counter::kIsIterationInvariantRate);
}

void shapes(benchmark::internal::Benchmark* b) {
  b->Args({768, 256})->Args({768, 768})->Args({2048, 768})->Unit(benchmark::kMillisecond);
}
BENCHMARK_CAPTURE(newton_schulz_form, standard, NsForm::standard, NsDType::fp32)->Apply(shapes);
BENCHMARK_CAPTURE(newton_schulz_form, gram, NsForm::gram, NsDType::fp32)->Apply(shapes);
BENCHMARK_CAPTURE(newton_schulz_form, bf16, NsForm::standard, NsDType::bf16)->Apply(shapes);

}  // namespace
}  // namespace rode::cpu
