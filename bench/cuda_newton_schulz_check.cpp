// SPDX-License-Identifier: Apache-2.0
// Newton-Schulz on CUDA: agreement of half precision with fp32, and of two runs.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

#include <cuda_runtime_api.h>

#include "backend/cuda/device/buffer.h"
#include "backend/cuda/device/check.h"
#include "cuda_newton_schulz.h"
#include "rules/rounding.h"

namespace rode::bench {

using namespace rode::cuda;

namespace {

std::uint64_t random_state = 1;
float gaussian() {
  float sum = 0;
  for (int i = 0; i < 4; ++i) {
    random_state = random_state * 6364136223846793005ULL + 1442695040888963407ULL;
    sum += static_cast<float>(random_state >> 40) * 0x1.0p-24F - 0.5F;
  }
  return sum;
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

}  // namespace

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

namespace {

struct Outcome {
  std::vector<std::vector<float>> iterates;
  std::vector<NsSums> sums;
};

Outcome solve(std::vector<NsMatrix> matrices, const std::vector<std::vector<float>>& starts,
              const std::vector<std::vector<float>>& directions) {
  const NewtonSchulz ns(matrices, std::size_t{512} << 20, true);
  all_ones(ns, matrices.size());
  Outcome out;
  out.iterates.resize(matrices.size());
  for (std::size_t batch = 0; batch < ns.batches().size(); ++batch) {
    for (const int i : ns.batches()[batch]) {
      const auto at = static_cast<std::size_t>(i);
      const NsMatrix& m = matrices[at];
      put(ns.slot(i).start, ns.slot(i), m.rows, m.cols, starts[at].data());
      if (m.sphere)
        put(ns.slot(i).direction, of_direction(ns.slot(i)), m.rows, m.cols, directions[at].data());
    }
    ns.run(batch, nullptr);
    RODE_CUDA_CHECK(cudaDeviceSynchronize());
    for (const int i : ns.batches()[batch]) {
      const NsMatrix& m = matrices[static_cast<std::size_t>(i)];
      out.iterates[static_cast<std::size_t>(i)] =
          get(ns.slot(i).iterate, ns.slot(i), m.rows, m.cols);
    }
  }
  out.sums.resize(matrices.size());
  RODE_CUDA_CHECK(cudaMemcpy(out.sums.data(), ns.sums(), out.sums.size() * sizeof(NsSums),
                             cudaMemcpyDeviceToHost));
  return out;
}

// Errors of a matrix in half precision, of the size of what they are errors of: over all, and of
// the worst tile, which a matrix of a thousand tiles would hide.
struct Errors {
  double all = 0, tile = 0;
};

Errors errors_of(const NsMatrix& m, const std::vector<float>& exact,
                 const std::vector<float>& half) {
  const auto at = [](std::int64_t i) { return static_cast<std::size_t>(i); };
  double size = 0, error = 0, worst = 0;
  for (std::int64_t row = 0; row < m.rows; row += kTileSide) {
    for (std::int64_t col = 0; col < m.cols; col += kTileSide) {
      const std::int64_t row_end = std::min<std::int64_t>(row + kTileSide, m.rows);
      const std::int64_t col_end = std::min<std::int64_t>(col + kTileSide, m.cols);
      double own = 0;
      for (std::int64_t r = row; r < row_end; ++r) {
        for (std::int64_t c = col; c < col_end; ++c) {
          const double a = exact[at(r * m.cols + c)], b = half[at(r * m.cols + c)];
          own += (a - b) * (a - b);
          size += a * a;
        }
      }
      error += own;
      worst = std::max(worst, own / static_cast<double>((row_end - row) * (col_end - col)));
    }
  }
  return {std::sqrt(error / size), std::sqrt(worst / size * static_cast<double>(m.rows * m.cols))};
}

}  // namespace

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
        const Errors errors = errors_of(matrices[i], exact.iterates[i], half.iterates[i]);
        double size = 0, xx = 0, t = 0;
        for (std::size_t j = 0; j < exact.iterates[i].size(); ++j) {
          const double a = exact.iterates[i][j], b = half.iterates[i][j];
          size += a * a;
          xx += b * b;
          t += b * static_cast<double>(directions[i][j]);
        }
        const bool same = half.iterates[i] == again.iterates[i];
        const bool sums = !c.sphere || (std::fabs(half.sums[i].xx / xx - 1) < 1e-4 &&
                                        std::fabs(half.sums[i].t - t) < 2e-2 + 1e-3 * std::fabs(t));
        const double bound = dtype == NsDType::bf16 ? 4e-2 : 1e-2;
        const bool fine = errors.all < bound && errors.tile < bound && same && sums;
        bad += fine ? 0 : 1;
        if (!fine || i < 3) {
          std::printf(
              "%-9s %s %5ldx%-5ld error %.4f, worst tile %.4f  |X| %.3f of %.3f  t %.4f (%.4f) "
              "exact %.4f  xx %.3f "
              "(%.3f)%s%s\n",
              c.name, dtype == NsDType::bf16 ? "bf16" : "fp16", static_cast<long>(matrices[i].rows),
              static_cast<long>(matrices[i].cols), errors.all, errors.tile, std::sqrt(xx),
              std::sqrt(size), half.sums[i].t, t, exact.sums[i].t, half.sums[i].xx, xx,
              same ? "" : "  NOT REPEATABLE", fine ? "" : "  BAD");
        }
      }
    }
  }
  std::printf("check: %d bad\n", bad);
  return bad == 0 ? 0 : 1;
}

}  // namespace rode::bench
