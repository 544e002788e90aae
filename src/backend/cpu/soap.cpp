// SPDX-License-Identifier: Apache-2.0
// SOAP's operations on one tensor; backend/host/soap_step.h has their order.
#include <algorithm>
#include <cstdint>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/loops.h"
#include "backend/cpu/modes.h"
#include "backend/cpu/versions.h"
#include "backend/host/lapack.h"
#include "backend/host/soap_basis.h"
#include "backend/host/soap_step.h"
#include "rules/rounding.h"

namespace rode::cpu {
namespace {

using host::element_count;
using host::Mode;
using host::SoapSpace;

constexpr std::int64_t kMirrorBlock = 64;

// m and v advance with the rotated gradient; `out` receives the direction.
RODE_VERSIONS
void soap_run(const rules::SoapConstants& c, const float* g, float* m, float* v, float* out,
              std::int64_t n) {
  const rules::SoapCoefficients k = rules::soap_coefficients(c);
  const float beta1 = k.beta1, rest1 = k.rest1, beta2 = k.beta2, rest2 = k.rest2, eps = k.eps;
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    float first = m[i], second = v[i];
    out[i] = rules::soap_element(beta1, rest1, beta2, rest2, eps, g[i], first, second);
    m[i] = first;
    v[i] = second;
  }
}

std::int64_t aligned(std::int64_t floats) { return (floats + 15) / 16 * 16; }

SoapSpace carve(const SoapJob& job, float* floats) {
  std::int64_t squares = 0, lines = 0;
  host::for_modes(job, [&](const Mode& mode) {
    squares += mode.square();
    lines += mode.extent;
  });
  SoapSpace space{};
  space.grams = floats;
  space.bases = floats + aligned(squares);
  space.orders = reinterpret_cast<std::int32_t*>(space.bases + aligned(squares));
  space.buffer = space.bases + aligned(squares) + aligned(lines);
  space.other = space.buffer + aligned(element_count(job));
  return space;
}

template <class F>
void for_slices(Team& team, std::int64_t count, F&& f) {
  team.run(slice_count(count), [&](std::int64_t slice) {
    f(slice * kSlice, std::min(kSlice, count - slice * kSlice));
  });
}

// fresh <- beta2 gram + (1 - beta2) fresh, from the upper triangle of `fresh` into both.
void average_gram(Team& team, const rules::SoapCoefficients& c, const float* gram, float* fresh,
                  std::int64_t n) {
  team.run((n + kMirrorBlock - 1) / kMirrorBlock, [&](std::int64_t block) {
    const std::int64_t top = block * kMirrorBlock, bottom = std::min(n, top + kMirrorBlock);
    for (std::int64_t left = top; left < n; left += kMirrorBlock) {
      const std::int64_t right = std::min(n, left + kMirrorBlock);
      for (std::int64_t i = top; i < bottom; ++i) {
        for (std::int64_t j = std::max(i, left); j < right; ++j) {
          const float value = rules::soap_average(c, gram[i * n + j], fresh[i * n + j]);
          fresh[i * n + j] = value;
          fresh[j * n + i] = value;
        }
      }
    }
  });
}

class Operations {
 public:
  Operations(SoapJob& job, const SoapSpace& space, Team& team, double* partial, std::int64_t step)
      : job_(job),
        space_(space),
        team_(team),
        partial_(partial),
        sequence_(rules::step_sequence(job.weight.sequence, step)),
        coefficients_(rules::soap_coefficients(*job.constants)) {}

  const float* gradient() {
    if (job_.grad.dtype == DType::f32) return static_cast<const float*>(job_.grad.data);
    for_slices(team_, element_count(job_), [&](std::int64_t at, std::int64_t n) {
      read(job_.grad, at, n, space_.buffer + at);
    });
    return space_.buffer;
  }

  void gram(const Mode& mode, const float* g, float* fresh) {
    mode_gram(team_, mode, g, space_.other, fresh);
    average_gram(team_, coefficients_, mode.gram, fresh, mode.extent);
  }

  bool first_basis(const Mode& mode, const float* gram, float* basis) {
    return host::eigenvectors(gram, mode.extent, basis, space_.buffer);
  }

  bool next_basis(const Mode& mode, const float* gram, float* basis, std::int32_t* order) {
    const std::int64_t n = mode.extent;
    float* product = space_.buffer;
    // L is symmetric: multiplying by its transpose is multiplying by it.
    cpu::rotate(team_, {1, n, n}, gram, true, mode.basis, product);
    return host::next_basis(mode.basis, product, n, basis, order, product + aligned(n * n));
  }

  void rotate(const Mode& mode, bool into, const float* x, float* y) {
    cpu::rotate(team_, mode, mode.basis, into, x, y);
  }

  void permute(const Mode& mode, const std::int32_t* order, const float* x, float* y) {
    cpu::permute(team_, mode, order, x, y);
  }

  void copy(const float* from, float* to, std::int64_t count) {
    if (from == to) return;
    for_slices(team_, count, [&](std::int64_t at, std::int64_t n) {
      std::copy(from + at, from + at + n, to + at);
    });
  }

  void moments(const float* g, float* direction) {
    for_slices(team_, element_count(job_), [&](std::int64_t at, std::int64_t n) {
      soap_run(*job_.constants, g + at, job_.exp_avg + at, job_.exp_avg_sq + at, direction + at, n);
    });
  }

  void write(const rules::SoapWrite& write, const float* direction) {
    const std::int64_t count = element_count(job_), slices = slice_count(count);
    const auto on_w = static_cast<float>(write.w), on_n = static_cast<float>(write.n);
    team_.run(slices, [&](std::int64_t slice) {
      float w_tile[kTile], fresh[kTile];
      Moved moved;
      for_tiles(flat(count), slice, [&](std::int64_t at, std::int64_t, std::int64_t n) {
        const float* w = read(job_.weight, at, n, w_tile);
        if (direction == nullptr) {
          moved.ww += sum_of_squares(w, n);
          return;
        }
        combine(fresh, on_w, w, on_n, direction + at, n);
        moved += write_weights(job_.weight, sequence_, job_.place() + at, at, n, w, fresh);
      });
      partial_[slice] = moved.ww;
      partial_[slices + slice] = moved.dd;
    });
    job_.sums.ww = job_.sums.dd = 0;
    for (std::int64_t slice = 0; slice < slices; ++slice) {
      job_.sums.ww += partial_[slice];
      job_.sums.dd += partial_[slices + slice];
    }
  }

 private:
  SoapJob& job_;
  const SoapSpace& space_;
  Team& team_;
  double* partial_;
  std::uint64_t sequence_;
  rules::SoapCoefficients coefficients_;
};

}  // namespace

std::size_t soap_workspace_floats(const SoapJob& job) {
  if (element_count(job) == 0) return 0;
  const std::int64_t count = aligned(element_count(job));
  std::int64_t squares = 0, lines = 0, buffers = 2 * count;
  host::for_modes(job, [&](const Mode& mode) {
    const std::int64_t n = mode.extent;
    squares += n * n;
    lines += n;
    buffers = std::max({buffers, count + static_cast<std::int64_t>(mode_gram_floats(mode)),
                        static_cast<std::int64_t>(host::eigen_workspace_floats(n)),
                        aligned(n * n) + static_cast<std::int64_t>(host::next_basis_floats(n))});
  });
  return static_cast<std::size_t>(2 * aligned(squares) + aligned(lines) + buffers);
}

double soap_cost(const SoapJob& job) {
  return 20 * static_cast<double>(element_count(job)) + rotation_flops(job);
}

void update(SoapJob& job, Team& team, Scratch scratch, const StepContext& context) {
  job.sums.ww = job.sums.dd = 0;
  job.failed = false;
  if (element_count(job) > 0) {
    const SoapSpace space = carve(job, scratch.floats);
    Operations operations(job, space, team, scratch.partial, context.step);
    job.failed = !host::SoapStep(job, space, operations)(*job.step, context.multiplier);
    if (job.failed) return;
  }
  ++*job.step;
}

}  // namespace rode::cpu
