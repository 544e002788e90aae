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
#include "rules/newton_schulz_rule.h"
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
  std::vector<rules::IterateSums> sums;
};

Outcome solve(std::vector<NsMatrix> matrices, const std::vector<std::vector<float>>& starts,
              const std::vector<std::vector<float>>& directions, CudaProducts products) {
  const NewtonSchulz ns(matrices, std::size_t{512} << 20, true, products);
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
  RODE_CUDA_CHECK(cudaMemcpy(out.sums.data(), ns.sums(),
                             out.sums.size() * sizeof(rules::IterateSums), cudaMemcpyDeviceToHost));
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

const char* name_of(NsDType dtype) {
  switch (dtype) {
    case NsDType::fp8: return "fp8";
    case NsDType::fp16: return "fp16";
    case NsDType::fp32: return "fp32";
    default: break;
  }
  return "bf16";
}

int check(const Shapes& shapes, CudaProducts products) {
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
    Coefficients set = Coefficients::jordan;
  };
  int bad = 0;
  constexpr Coefficients four = Coefficients::four;
  for (const Case& c :
       {Case{"muon", false, Reproject::final, NsForm::standard},
        Case{"muon gram", false, Reproject::final, NsForm::gram},
        Case{"final", true, Reproject::final, NsForm::standard},
        Case{"every", true, Reproject::every, NsForm::standard},
        Case{"guarded", true, Reproject::guarded, NsForm::standard},
        Case{"four", true, Reproject::guarded, NsForm::standard, four},
        Case{"muon four", false, Reproject::final, NsForm::gram, four},
        Case{"polar", true, Reproject::guarded, NsForm::standard, Coefficients::polar_express}}) {
    std::vector<NsMatrix> matrices;
    for (const auto& [rows, cols] : shapes) {
      matrices.push_back({.rows = rows,
                          .cols = cols,
                          .steps = rules::own_ns_steps(c.set),
                          .coefficients = c.set,
                          .dtype = NsDType::fp32,
                          .form = c.form,
                          .reproject = c.reproject,
                          .sphere = c.sphere});
    }
    const Outcome exact = solve(matrices, starts, directions, products);
    for (const NsDType dtype : {NsDType::bf16, NsDType::fp16, NsDType::fp8}) {
      // e4m3 products: on Hopper, in the standard form.
      if (dtype == NsDType::fp8 && (products != CudaProducts::automatic || c.form == NsForm::gram))
        continue;
      for (NsMatrix& m : matrices) m.dtype = dtype;
      const Outcome half = solve(matrices, starts, directions, products);
      const Outcome again = solve(matrices, starts, directions, products);
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
        // The second polynomial of four is steep where the first one leaves most values.
        const double room = c.set == Coefficients::jordan ? 1 : 2;
        const double bound = room * (dtype == NsDType::fp8    ? 12e-2
                                     : dtype == NsDType::bf16 ? 4e-2
                                                              : 1e-2);
        // A tile at the edge may have one row.
        const double tile_bound = dtype == NsDType::fp8 ? 2 * bound : bound;
        const bool fine = errors.all < bound && errors.tile < tile_bound && same && sums;
        bad += fine ? 0 : 1;
        if (!fine || i < 3) {
          std::printf(
              "%-9s %s %5ldx%-5ld error %.4f, worst tile %.4f  |X| %.3f of %.3f  t %.4f (%.4f) "
              "exact %.4f  xx %.3f "
              "(%.3f)%s%s\n",
              c.name, name_of(dtype), static_cast<long>(matrices[i].rows),
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

namespace {

// m x n, columns orthonormal: Gram-Schmidt twice over columns that lie in rows here.
std::vector<double> orthonormal(std::int64_t m, std::int64_t n) {
  const auto at = [](std::int64_t i) { return static_cast<std::size_t>(i); };
  std::vector<double> q(at(m * n));
  for (double& v : q) v = static_cast<double>(gaussian());
  for (std::int64_t j = 0; j < n; ++j) {
    double* own = q.data() + j * m;
    for (int pass = 0; pass < 2; ++pass) {
      for (std::int64_t k = 0; k < j; ++k) {
        const double* other = q.data() + k * m;
        double sum = 0;
        for (std::int64_t i = 0; i < m; ++i) sum += own[i] * other[i];
        for (std::int64_t i = 0; i < m; ++i) own[i] -= sum * other[i];
      }
    }
    double sum = 0;
    for (std::int64_t i = 0; i < m; ++i) sum += own[i] * own[i];
    for (std::int64_t i = 0; i < m; ++i) own[i] /= std::sqrt(sum);
  }
  return q;
}

struct Spectrum {
  const char* name;
  double (*value)(std::int64_t k, std::int64_t n);
  double five, four;  // bounds of the error of e4m3 products
};
constexpr Spectrum kSpectra[] = {
    {"Gaussian", nullptr, 0.092, 0.13},
    {"exponential",
     [](std::int64_t k, std::int64_t n) {
       return std::exp(-6.0 * static_cast<double>(k - 1) / static_cast<double>(n - 1));
     },
     0.094, 0.16},
    {"1/k", [](std::int64_t k, std::int64_t) { return 1 / static_cast<double>(k); }, 0.039, 0.04},
    {"1/k^2", [](std::int64_t k, std::int64_t) { return 1 / static_cast<double>(k * k); }, 0.07,
     0.07},
    {"rank 8", [](std::int64_t k, std::int64_t) { return k <= 8 ? 1.0 : 0.0; }, 0.26, 0.12},
};

std::vector<float> of_spectrum(const Spectrum& spectrum, std::int64_t rows, std::int64_t cols) {
  if (spectrum.value == nullptr) return unit_matrix(rows, cols);
  const std::int64_t n = std::min(rows, cols);
  const std::vector<double> left = orthonormal(rows, n), right = orthonormal(cols, n);
  std::vector<double> sum(static_cast<std::size_t>(rows * cols));
  for (std::int64_t k = 0; k < n; ++k) {
    const double value = spectrum.value(k + 1, n);
    if (value == 0) continue;
    for (std::int64_t i = 0; i < rows; ++i) {
      const double factor = value * left[static_cast<std::size_t>(k * rows + i)];
      double* to = sum.data() + i * cols;
      const double* from = right.data() + k * cols;
      for (std::int64_t j = 0; j < cols; ++j) to[j] += factor * from[j];
    }
  }
  double size = 0;
  for (const double v : sum) size += v * v;
  std::vector<float> result;
  for (const double v : sum) result.push_back(static_cast<float>(v / std::sqrt(size)));
  return result;
}

}  // namespace

int check_spectra(const Shapes& shapes) {
  int bad = 0;
  for (const auto& [rows, cols] : shapes) {
    const std::vector<std::vector<float>> directions{unit_matrix(rows, cols)};
    for (const Spectrum& spectrum : kSpectra) {
      const std::vector<std::vector<float>> starts{of_spectrum(spectrum, rows, cols)};
      for (const Coefficients set : {Coefficients::jordan, Coefficients::four}) {
        NsMatrix m{.rows = rows,
                   .cols = cols,
                   .steps = rules::own_ns_steps(set),
                   .coefficients = set,
                   .dtype = NsDType::fp32,
                   .form = NsForm::standard,
                   .reproject = Reproject::guarded,
                   .sphere = true};
        const auto run = [&](NsDType dtype) {
          m.dtype = dtype;
          return solve({m}, starts, directions, CudaProducts::automatic).iterates[0];
        };
        const std::vector<float> exact = run(NsDType::fp32);
        const double fp8 = errors_of(m, exact, run(NsDType::fp8)).all,
                     bf16 = errors_of(m, exact, run(NsDType::bf16)).all,
                     fp16 = errors_of(m, exact, run(NsDType::fp16)).all;
        const bool five = set == Coefficients::jordan;
        const double bound = five ? spectrum.five : spectrum.four;
        bad += fp8 < bound ? 0 : 1;
        std::printf("%5ldx%-5ld %-11s %s  fp8 %.4f (bound %.3f)  bf16 %.4f  fp16 %.4f%s\n",
                    static_cast<long>(rows), static_cast<long>(cols), spectrum.name,
                    five ? "five" : "four", fp8, bound, bf16, fp16, fp8 < bound ? "" : "  BAD");
      }
    }
  }
  std::printf("spectra: %d bad\n", bad);
  return bad == 0 ? 0 : 1;
}

}  // namespace rode::bench
