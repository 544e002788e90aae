// SPDX-License-Identifier: Apache-2.0
// SOAP on one tensor.
//
// New Gram matrices and bases are made in the workspace first: what can fail, fails before
// any weight or state has moved.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>

#include <fmt/format.h>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/lapack.h"
#include "backend/cpu/modes.h"
#include "backend/cpu/tiles.h"
#include "backend/cpu/versions.h"
#include "rode/error.h"

namespace rode::cpu {
namespace {

constexpr std::int64_t kMirrorBlock = 64;

// m and v advance with the rotated gradient; `out` receives the direction.
RODE_VERSIONS
void soap_run(const rules::SoapConstants& c, const float* g, float* m, float* v, float* out,
              std::int64_t n) {
  const auto beta1 = static_cast<float>(c.beta1), rest1 = static_cast<float>(1 - c.beta1);
  const auto beta2 = static_cast<float>(c.beta2), rest2 = static_cast<float>(1 - c.beta2);
  const auto eps = static_cast<float>(c.eps);
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    float first = m[i], second = v[i];
    out[i] = rules::soap_element(beta1, rest1, beta2, rest2, eps, g[i], first, second);
    m[i] = first;
    v[i] = second;
  }
}

std::int64_t element_count(const SoapJob& job) { return geometry_of(job).numel(); }

// Calls f(mode, view, squares, lines) for every mode with a basis; the last two count the
// elements of the n x n and of the n-element arrays of the modes before it.
template <class F>
void for_modes(const SoapJob& job, F&& f) {
  std::int64_t outer = 1, inner = element_count(job), squares = 0, lines = 0;
  for (const SoapMode& mode : job.modes) {
    const std::int64_t n = mode.extent;
    inner /= n;
    if (mode.basis != nullptr) {
      f(mode, ModeView{outer, n, inner}, squares, lines);
      squares += n * n;
      lines += n;
    }
    outer *= n;
  }
}

// Grams and bases of all modes lie one behind the other. The buffers serve one stage after
// another: first the Gram matrices, then the factorizations, then the rotations.
struct Space {
  float *grams, *bases;
  std::int32_t* orders;
  float *buffer, *other;
};

std::int64_t aligned(std::int64_t floats) { return (floats + 15) / 16 * 16; }

Space carve(const SoapJob& job, float* floats) {
  std::int64_t squares = 0, lines = 0;
  for_modes(job, [&](const SoapMode& mode, const ModeView&, std::int64_t, std::int64_t) {
    squares += mode.extent * mode.extent;
    lines += mode.extent;
  });
  Space space{};
  space.grams = floats;
  space.bases = floats + aligned(squares);
  space.orders = reinterpret_cast<std::int32_t*>(space.bases + aligned(squares));
  space.buffer = space.bases + aligned(squares) + aligned(lines);
  space.other = space.buffer + aligned(element_count(job));
  return space;
}

template <class F>
void for_chunks(Team& team, std::int64_t count, F&& f) {
  team.run(chunk_count(count), [&](std::int64_t chunk) {
    f(chunk * kChunk, std::min(kChunk, count - chunk * kChunk));
  });
}

void copy(Team& team, const float* from, float* to, std::int64_t count) {
  if (from == to) return;
  for_chunks(team, count, [&](std::int64_t at, std::int64_t n) {
    std::copy(from + at, from + at + n, to + at);
  });
}

// The gradient in fp32 without a copy where it is stored so.
const float* gradient(const SoapJob& job, Team& team, float* buffer) {
  if (job.grad.dtype == DType::f32) return static_cast<const float*>(job.grad.data);
  for_chunks(team, element_count(job),
             [&](std::int64_t at, std::int64_t n) { read(job.grad, at, n, buffer + at); });
  return buffer;
}

// fresh <- beta gram + (1 - beta) fresh, from the upper triangle of `fresh` into both.
void average_gram(Team& team, const float* gram, float* fresh, std::int64_t n, double beta) {
  const auto keep = static_cast<float>(beta), rest = static_cast<float>(1 - beta);
  team.run((n + kMirrorBlock - 1) / kMirrorBlock, [&](std::int64_t block) {
    const std::int64_t top = block * kMirrorBlock, bottom = std::min(n, top + kMirrorBlock);
    for (std::int64_t left = top; left < n; left += kMirrorBlock) {
      const std::int64_t right = std::min(n, left + kMirrorBlock);
      for (std::int64_t i = top; i < bottom; ++i) {
        for (std::int64_t j = std::max(i, left); j < right; ++j) {
          const float value = rules::soap_average(keep, rest, gram[i * n + j], fresh[i * n + j]);
          fresh[i * n + j] = value;
          fresh[j * n + i] = value;
        }
      }
    }
  });
}

void new_grams(const SoapJob& job, Team& team, const Space& space) {
  const float* g = gradient(job, team, space.buffer);
  for_modes(job,
            [&](const SoapMode& mode, const ModeView& view, std::int64_t squares, std::int64_t) {
              const std::int64_t n = view.extent;
              float* fresh = space.grams + squares;
              mode_gram(team, view, g, space.other, fresh);
              average_gram(team, mode.gram, fresh, n, job.constants->beta2);
            });
}

// Q <- qr(L Q) with the columns of Q in the order of diag(Q^T L Q), the largest first.
bool new_bases(const SoapJob& job, Team& team, const Space& space) {
  bool done = true;
  for_modes(job, [&](const SoapMode& mode, const ModeView& view, std::int64_t squares,
                     std::int64_t lines) {
    const std::int64_t n = view.extent;
    float* product = space.buffer;  // L Q
    float* columns = space.bases + squares;
    std::int32_t* order = space.orders + lines;
    float* workspace = space.buffer + aligned(n * n);
    rotate(team, {1, n, n}, space.grams + squares, true, mode.basis, product);

    auto* eigenvalues = reinterpret_cast<double*>(workspace);
    std::fill(eigenvalues, eigenvalues + n, 0.0);
    for (std::int64_t at = 0, i = 0; i < n; ++i) {
      for (std::int64_t j = 0; j < n; ++j, ++at) {
        eigenvalues[j] += static_cast<double>(mode.basis[at]) * static_cast<double>(product[at]);
      }
    }
    std::iota(order, order + n, 0);
    // Ties by index: stable, and without stable_sort's buffer.
    std::sort(order, order + n, [&](std::int32_t a, std::int32_t b) {
      return eigenvalues[a] != eigenvalues[b] ? eigenvalues[a] > eigenvalues[b] : a < b;
    });
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::int64_t j = 0; j < n; ++j) columns[j * n + i] = product[i * n + order[j]];
    }
    done = orthonormalize(columns, n, workspace) && done;
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::int64_t j = i + 1; j < n; ++j) std::swap(columns[i * n + j], columns[j * n + i]);
    }
  });
  return done;
}

bool first_bases(const SoapJob& job, const Space& space) {
  bool done = true;
  for_modes(job, [&](const SoapMode&, const ModeView& view, std::int64_t squares, std::int64_t) {
    done = eigenvectors(space.grams + squares, view.extent, space.bases + squares, space.buffer) &&
           done;
  });
  return done;
}

// Through every mode, into the bases or back; the result lies in x, buffer or other.
const float* rotate_all(const SoapJob& job, Team& team, const Space& space, bool into,
                        const float* x) {
  for_modes(job, [&](const SoapMode& mode, const ModeView& view, std::int64_t, std::int64_t) {
    float* y = x == space.buffer ? space.other : space.buffer;
    rotate(team, view, mode.basis, into, x, y);
    x = y;
  });
  return x;
}

void keep_bases(const SoapJob& job, Team& team, const Space& space) {
  for_modes(job,
            [&](const SoapMode& mode, const ModeView& view, std::int64_t squares, std::int64_t) {
              copy(team, space.bases + squares, mode.basis, view.extent * view.extent);
            });
}

// exp_avg goes from the old bases to the new ones, exp_avg_sq follows their order.
void change_bases(const SoapJob& job, Team& team, const Space& space) {
  const std::int64_t count = element_count(job);
  const float* m = rotate_all(job, team, space, false, job.exp_avg);
  keep_bases(job, team, space);
  copy(team, rotate_all(job, team, space, true, m), job.exp_avg, count);

  const float* v = job.exp_avg_sq;
  for_modes(job, [&](const SoapMode&, const ModeView& view, std::int64_t, std::int64_t lines) {
    float* y = v == space.buffer ? space.other : space.buffer;
    permute(team, view, space.orders + lines, v, y);
    v = y;
  });
  copy(team, v, job.exp_avg_sq, count);
}

// W <- keep W + along N; N may be null.
void write_all(SoapJob& job, Team& team, double* partial, const StepContext& context, double keep,
               double along, const float* direction) {
  const std::int64_t count = element_count(job), chunks = chunk_count(count);
  const auto on_w = static_cast<float>(keep), on_n = static_cast<float>(along);
  const std::uint64_t stream = step_stream(job.weight, context.step);
  team.run(chunks, [&](std::int64_t chunk) {
    float w_tile[kTile], fresh[kTile];
    double own = 0, moved = 0;
    for_tiles(flat(count), chunk, [&](std::int64_t at, std::int64_t, std::int64_t n) {
      const float* w = read(job.weight, at, n, w_tile);
      own += sum_of_squares(w, n);
      if (direction == nullptr) return;
      combine(fresh, on_w, w, on_n, direction + at, n);
      moved += write_weights(job.weight, stream, job.offset + at, at, n, w, fresh);
    });
    partial[chunk] = own;
    partial[chunks + chunk] = moved;
  });
  job.sums.ww = job.sums.dd = 0;
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
    job.sums.ww += partial[chunk];
    job.sums.dd += partial[chunks + chunk];
  }
}

void step_weights(SoapJob& job, Team& team, const Space& space, double* partial,
                  const StepContext& context, std::int64_t k) {
  const rules::SoapConstants& c = *job.constants;
  const float* g = rotate_all(job, team, space, true, gradient(job, team, space.buffer));
  float* direction = g == space.buffer ? space.other : space.buffer;
  for_chunks(team, element_count(job), [&](std::int64_t at, std::int64_t n) {
    soap_run(c, g + at, job.exp_avg + at, job.exp_avg_sq + at, direction + at, n);
  });
  const rules::SoapWrite out = rules::soap_write(c, context.multiplier, k);
  write_all(job, team, partial, context, out.w, out.n,
            rotate_all(job, team, space, false, direction));
}

}  // namespace

std::size_t soap_workspace_floats(const SoapJob& job) {
  if (element_count(job) == 0) return 0;
  const std::int64_t count = aligned(element_count(job));
  std::int64_t squares = 0, lines = 0, buffers = 2 * count;
  for_modes(job, [&](const SoapMode&, const ModeView& view, std::int64_t, std::int64_t) {
    const std::int64_t n = view.extent;
    squares += n * n;
    lines += n;
    buffers = std::max(
        {buffers, count + static_cast<std::int64_t>(mode_gram_floats(view)),
         static_cast<std::int64_t>(eigen_workspace_floats(n)),
         // The sort's eigenvalues, in double, and QR's work take turns.
         aligned(n * n) + std::max(2 * n, static_cast<std::int64_t>(qr_workspace_floats(n)))});
  });
  return static_cast<std::size_t>(2 * aligned(squares) + aligned(lines) + buffers);
}

double soap_cost(const SoapJob& job) {
  const auto count = static_cast<double>(element_count(job));
  double cost = 20 * count;
  if (count == 0) return cost;
  for_modes(job, [&](const SoapMode&, const ModeView& view, std::int64_t, std::int64_t) {
    const auto n = static_cast<double>(view.extent);
    // Two rotations and half a Gram product a step; two rotations, a product and a QR
    // (at a third of the speed of products) every so many.
    cost += 5 * n * count +
            (4 * n * count + 10 * n * n * n) / std::max(1, job.constants->precondition_frequency);
  });
  return cost;
}

void update(SoapJob& job, Team& team, Scratch scratch, const StepContext& context) {
  const std::int64_t k = *job.step;  // gradients after the first, this one included
  job.sums.ww = job.sums.dd = 0;
  job.failed = false;
  if (element_count(job) > 0) {
    const Space space = carve(job, scratch.floats);
    const bool refresh = rules::soap_changes_basis(*job.constants, k);
    new_grams(job, team, space);
    // All that can fail is done in the workspace before the first change; other parameters
    // of the step have moved by now, so a failure leaves this one out instead of throwing.
    job.failed = k == 0 ? !first_bases(job, space) : refresh && !new_bases(job, team, space);
    if (job.failed) return;
    if (k == 0) {
      keep_bases(job, team, space);
      write_all(job, team, scratch.partial, context, 1, 0, nullptr);
    } else {
      step_weights(job, team, space, scratch.partial, context, k);
      if (refresh) change_bases(job, team, space);
    }
    for_modes(job,
              [&](const SoapMode& mode, const ModeView& view, std::int64_t squares, std::int64_t) {
                copy(team, space.grams + squares, mode.gram, view.extent * view.extent);
              });
  }
  ++*job.step;
}

}  // namespace rode::cpu
