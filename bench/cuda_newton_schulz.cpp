// SPDX-License-Identifier: Apache-2.0
// Newton-Schulz on CUDA by itself: agreement of half precision with fp32, and the time and
// rate of every launch.
//
//   bench_cuda_newton_schulz [check | check-small] [warm=SECONDS] [SHAPES...]
//
// SHAPES: ROWSxCOLSxCOUNT,... or a model. check-small is for compute-sanitizer. warm: products run
// that long before any is timed, so that the chip's clock is the one its power limit leaves.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include <cuda_runtime_api.h>

#include "backend/cuda/cuda_check.h"
#include "backend/cuda/device_buffer.h"
#include "backend/cuda/newton_schulz.h"
#include "rode/error.h"
#include "rules/rounding.h"

namespace {

using namespace rode;
using namespace rode::cuda;

std::uint64_t random_state = 1;
float gaussian() {
  float sum = 0;
  for (int i = 0; i < 4; ++i) {
    random_state = random_state * 6364136223846793005ULL + 1442695040888963407ULL;
    sum += static_cast<float>(random_state >> 40) * 0x1.0p-24F - 0.5F;
  }
  return sum;
}

std::vector<float> unit_matrix(std::int64_t rows, std::int64_t cols) {
  std::vector<float> values(static_cast<std::size_t>(rows * cols));
  double sum = 0;
  for (float& v : values) {
    v = gaussian();
    sum += static_cast<double>(v) * static_cast<double>(v);
  }
  for (float& v : values) v = static_cast<float>(static_cast<double>(v) / std::sqrt(sum));
  return values;
}

std::uint16_t to_half(float x) {  // fp16, nearest; the numbers here are neither huge nor NaN
  const std::uint32_t bits = rules::float_bits(x), sign = (bits >> 16) & 0x8000U;
  const float size = std::fabs(x);
  if (size < 0x1.0p-14F) {
    return static_cast<std::uint16_t>(sign |
                                      static_cast<std::uint32_t>(std::lrint(size * 0x1.0p24F)));
  }
  std::uint32_t rest = rules::float_bits(size) - (112U << 23);
  rest += 0xfffU + ((rest >> 13) & 1U);
  return static_cast<std::uint16_t>(sign | (rest >> 13));
}
float from_half(std::uint16_t half) {
  const int exponent = (half >> 10) & 31, mantissa = half & 1023;
  const float size = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -24)
                                   : std::ldexp(static_cast<float>(1024 + mantissa), exponent - 25);
  return (half & 0x8000) != 0 ? -size : size;
}

// U is fp16 where the rest is bf16.
NsSlot of_direction(NsSlot slot) {
  if (slot.dtype == NsDType::bf16) slot.dtype = NsDType::fp16;
  return slot;
}

void put(void* at, const NsSlot& slot, std::int64_t rows, std::int64_t cols, const float* values) {
  const std::size_t element = element_bytes(slot.dtype);
  std::vector<std::byte> bytes(static_cast<std::size_t>(rows * slot.stride) * element);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < cols; ++c) {
      std::byte* to = bytes.data() + static_cast<std::size_t>(r * slot.stride + c) * element;
      const float v = values[r * cols + c];
      const std::uint16_t half = slot.dtype == NsDType::fp16 ? to_half(v) : rules::bf16_nearest(v);
      std::memcpy(to, element == 4 ? static_cast<const void*>(&v) : &half, element);
    }
  }
  RODE_CUDA_CHECK(cudaMemcpy(at, bytes.data(), bytes.size(), cudaMemcpyHostToDevice));
}

std::vector<float> get(const void* at, const NsSlot& slot, std::int64_t rows, std::int64_t cols) {
  const std::size_t element = element_bytes(slot.dtype);
  std::vector<std::byte> bytes(static_cast<std::size_t>(rows * slot.stride) * element);
  RODE_CUDA_CHECK(cudaMemcpy(bytes.data(), at, bytes.size(), cudaMemcpyDeviceToHost));
  std::vector<float> values;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < cols; ++c) {
      const std::byte* from =
          bytes.data() + static_cast<std::size_t>(r * slot.stride + c) * element;
      float v = 0;
      std::uint16_t half = 0;
      if (element == 4) {
        std::memcpy(&v, from, 4);
      } else {
        std::memcpy(&half, from, 2);
        v = slot.dtype == NsDType::fp16 ? from_half(half) : rules::bf16_to_float(half);
      }
      values.push_back(v);
    }
  }
  return values;
}

void all_ones(const NewtonSchulz& ns, std::size_t count) {
  const std::vector<float> ones(count, 1.0F);
  RODE_CUDA_CHECK(
      cudaMemcpy(ns.start_scale(), ones.data(), count * sizeof(float), cudaMemcpyHostToDevice));
}

struct Outcome {
  std::vector<std::vector<float>> kernels;
  std::vector<NsSums> sums;
};

Outcome solve(std::vector<NsMatrix> matrices, const std::vector<std::vector<float>>& starts,
              const std::vector<std::vector<float>>& directions) {
  const NewtonSchulz ns(matrices, std::size_t{512} << 20, true);
  all_ones(ns, matrices.size());
  Outcome out;
  out.kernels.resize(matrices.size());
  for (std::size_t chunk = 0; chunk < ns.chunks().size(); ++chunk) {
    for (const int i : ns.chunks()[chunk]) {
      const auto at = static_cast<std::size_t>(i);
      const NsMatrix& m = matrices[at];
      put(ns.slot(i).start, ns.slot(i), m.rows, m.cols, starts[at].data());
      if (m.sphere)
        put(ns.slot(i).direction, of_direction(ns.slot(i)), m.rows, m.cols, directions[at].data());
    }
    ns.run(chunk, nullptr);
    RODE_CUDA_CHECK(cudaDeviceSynchronize());
    for (const int i : ns.chunks()[chunk]) {
      const NsMatrix& m = matrices[static_cast<std::size_t>(i)];
      out.kernels[static_cast<std::size_t>(i)] = get(ns.slot(i).kernel, ns.slot(i), m.rows, m.cols);
    }
  }
  out.sums.resize(matrices.size());
  RODE_CUDA_CHECK(cudaMemcpy(out.sums.data(), ns.sums(), out.sums.size() * sizeof(NsSums),
                             cudaMemcpyDeviceToHost));
  return out;
}

using Shapes = std::vector<std::pair<std::int64_t, std::int64_t>>;
const Shapes kHeld = {{768, 768},   {2048, 768},  {768, 2048}, {256, 768}, {768, 256},
                      {1536, 1536}, {129, 257},   {64, 147},   {300, 300}, {512, 4608},
                      {1000, 2048}, {2048, 768},  {4100, 1536}, {72, 64}};
const Shapes kSmall = {{256, 256}, {129, 257}, {256, 256}};  // two of a shape share items
const Shapes kWide = {{8960, 1536}, {1536, 8960}, {4500, 1333}, {256, 1536}, {1536, 1536}};

int check(const Shapes& shapes) {
  std::vector<std::vector<float>> starts, directions;
  for (const auto& [rows, cols] : shapes) {
    starts.push_back(unit_matrix(rows, cols));
    directions.push_back(unit_matrix(rows, cols));
    // Momentum that leans on U, so that every projection matters.
    for (std::size_t i = 0; i < starts.back().size(); ++i) {
      starts.back()[i] = 0.995F * starts.back()[i] + 0.1F * directions.back()[i];
    }
  }
  struct Case {
    const char* name;
    bool sphere;
    Reproject reproject;
    NsForm form;
  };
  int bad = 0;
  for (const Case& c : {Case{"muon", false, Reproject::final, NsForm::standard},
                        Case{"muon gram", false, Reproject::final, NsForm::gram},
                        Case{"final", true, Reproject::final, NsForm::standard},
                        Case{"every", true, Reproject::every, NsForm::standard},
                        Case{"guarded", true, Reproject::guarded, NsForm::standard}}) {
    std::vector<NsMatrix> matrices;
    for (const auto& [rows, cols] : shapes) {
      matrices.push_back({.rows = rows,
                          .cols = cols,
                          .steps = 5,
                          .dtype = NsDType::fp32,
                          .form = c.form,
                          .reproject = c.reproject,
                          .sphere = c.sphere});
    }
    const Outcome exact = solve(matrices, starts, directions);
    for (const NsDType dtype : {NsDType::bf16, NsDType::fp16}) {
      for (NsMatrix& m : matrices) m.dtype = dtype;
      const Outcome half = solve(matrices, starts, directions);
      const Outcome again = solve(matrices, starts, directions);
      for (std::size_t i = 0; i < matrices.size(); ++i) {
        double error = 0, size = 0, xx = 0, t = 0;
        for (std::size_t j = 0; j < exact.kernels[i].size(); ++j) {
          const double a = exact.kernels[i][j], b = half.kernels[i][j];
          error += (a - b) * (a - b);
          size += a * a;
          xx += b * b;
          t += b * static_cast<double>(directions[i][j]);
        }
        const double relative = std::sqrt(error / size);
        const bool same = half.kernels[i] == again.kernels[i];
        const bool sums = !c.sphere || (std::fabs(half.sums[i].xx / xx - 1) < 1e-4 &&
                                        std::fabs(half.sums[i].t - t) < 2e-2 + 1e-3 * std::fabs(t));
        const bool fine = relative < (dtype == NsDType::bf16 ? 4e-2 : 1e-2) && same && sums;
        bad += fine ? 0 : 1;
        if (!fine || i < 3) {
          std::printf(
              "%-9s %s %5ldx%-5ld error %.4f  |X| %.3f of %.3f  t %.4f (%.4f) exact %.4f  xx %.3f "
              "(%.3f)%s%s\n",
              c.name, dtype == NsDType::bf16 ? "bf16" : "fp16", static_cast<long>(matrices[i].rows),
              static_cast<long>(matrices[i].cols), relative, std::sqrt(xx), std::sqrt(size),
              half.sums[i].t, t, exact.sums[i].t, half.sums[i].xx, xx,
              same ? "" : "  NOT REPEATABLE", fine ? "" : "  BAD");
        }
      }
    }
  }
  std::printf("check: %d bad\n", bad);
  return bad == 0 ? 0 : 1;
}

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

// FLOPs of a launch over the whole model: full, whatever symmetry saves.
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

void warm_up(const NewtonSchulz& ns, std::size_t chunk, cudaStream_t stream, double seconds) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  while (std::chrono::duration<double>(Clock::now() - begin).count() < seconds) {
    for (int i = 0; i < 8; ++i) ns.run(chunk, stream);
    RODE_CUDA_CHECK(cudaStreamSynchronize(stream));
  }
}

void time_model(const std::string& name, NsDType dtype, bool sphere, Reproject reproject,
                NsForm form, double warm_seconds) {
  std::vector<NsMatrix> matrices = model(name);
  for (NsMatrix& m : matrices) {
    m.dtype = dtype;
    m.sphere = sphere;
    m.reproject = reproject;
    m.form = form;
  }
  const NewtonSchulz ns(matrices, std::size_t{512} << 20, true);
  all_ones(ns, matrices.size());
  // Random bits of small numbers everywhere: zeros would run too fast. One start serves all.
  const auto fill = [&](std::size_t chunk) {
    std::map<std::pair<std::int64_t, std::int64_t>, std::vector<float>> made;
    for (const int i : ns.chunks()[chunk]) {
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
  std::map<std::string, std::vector<double>> times;
  std::map<std::string, double> flops;
  double total_graph = 0;
  const std::size_t timed = std::min<std::size_t>(ns.chunks().size(), 2);
  for (std::size_t chunk = 0; chunk < timed; ++chunk) {
    fill(chunk);
    warm_up(ns, chunk, stream, warm_seconds);
    std::vector<std::pair<std::string, cudaEvent_t>> marks;
    const auto mark = [&](const char* what) {
      cudaEvent_t event = nullptr;
      RODE_CUDA_CHECK(cudaEventCreate(&event));
      RODE_CUDA_CHECK(cudaEventRecord(event, stream));
      marks.emplace_back(what, event);
    };
    for (int repeat = 0; repeat < 6; ++repeat) {
      mark("");
      ns.run(chunk, stream, mark);
    }
    RODE_CUDA_CHECK(cudaStreamSynchronize(stream));
    for (std::size_t i = marks.size() / 6; i < marks.size(); ++i) {
      if (marks[i].first.empty()) continue;
      float ms = 0;
      RODE_CUDA_CHECK(cudaEventElapsedTime(&ms, marks[i - 1].second, marks[i].second));
      const std::string key = marks[i].first + (chunk == 0 ? "" : " (chunk 1)");
      times[key].push_back(static_cast<double>(ms));
      flops[key] = full_flops(marks[i].first, matrices, ns.chunks()[chunk]);
    }
  }
  // The whole as a graph, every chunk.
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  RODE_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (std::size_t chunk = 0; chunk < ns.chunks().size(); ++chunk) ns.run(chunk, stream);
  RODE_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
  RODE_CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
  warm_up(ns, 0, stream, warm_seconds);
  std::vector<double> wholes;
  for (int i = 0; i < 12; ++i) {
    cudaEvent_t from = nullptr, to = nullptr;
    RODE_CUDA_CHECK(cudaEventCreate(&from));
    RODE_CUDA_CHECK(cudaEventCreate(&to));
    RODE_CUDA_CHECK(cudaEventRecord(from, stream));
    RODE_CUDA_CHECK(cudaGraphLaunch(exec, stream));
    RODE_CUDA_CHECK(cudaEventRecord(to, stream));
    RODE_CUDA_CHECK(cudaStreamSynchronize(stream));
    float ms = 0;
    RODE_CUDA_CHECK(cudaEventElapsedTime(&ms, from, to));
    wholes.push_back(static_cast<double>(ms));
  }
  std::sort(wholes.begin(), wholes.end());
  total_graph = wholes[wholes.size() / 2];
  double full = 0, symmetric = 0;
  for (const NsMatrix& matrix : matrices) {
    const auto n = static_cast<double>(std::min(matrix.rows, matrix.cols));
    const auto m = static_cast<double>(std::max(matrix.rows, matrix.cols));
    full += 5 * (4 * m * n * n + 2 * n * n * n);
    symmetric += 5 * (3 * m * n * n + n * n * n);
  }
  std::printf(
      "%s %s %s: graph %.3f ms; %.0f TFLOP/s symmetric, %.0f full; %zu chunks, workspace %.0f MB\n",
      name.c_str(), sphere ? (reproject == Reproject::guarded ? "guarded" : "final") : "muon",
      dtype == NsDType::fp16 ? "fp16" : "bf16", total_graph, symmetric / total_graph / 1e9,
      full / total_graph / 1e9, ns.chunks().size(),
      static_cast<double>(ns.workspace_bytes()) / 1e6);
  for (auto& [what, list] : times) {
    std::sort(list.begin(), list.end());
    const double median = list[list.size() / 2];
    std::printf("   %-28s %8.1f us  %6.0f TFLOP/s of full\n", what.c_str(), median * 1e3,
                flops[what] / median / 1e9);
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    int result = 0;
    double warm = 0;
    for (int i = 1; i < argc; ++i) {
      const std::string what = argv[i];
      if (what == "check") {
        result |= check(kHeld) | check(kWide);
        continue;
      }
      if (what == "check-small" || what == "check-wide") {
        result |= check(what == "check-small" ? kSmall : kWide);
        continue;
      }
      if (std::sscanf(what.c_str(), "warm=%lf", &warm) == 1) continue;
      time_model(what, NsDType::bf16, true, Reproject::guarded, NsForm::automatic, warm);
      time_model(what, NsDType::bf16, false, Reproject::final, NsForm::standard, warm);
      time_model(what, NsDType::bf16, false, Reproject::final, NsForm::automatic, warm);
    }
    return result;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
