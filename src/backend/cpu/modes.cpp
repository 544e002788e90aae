// SPDX-License-Identifier: Apache-2.0
// Rotations, Gram matrices and permutations along a mode: by the BLAS, or by hand where tiny.
#include "backend/cpu/modes.h"

#include <algorithm>

#include "backend/cpu/blas.h"
#include "backend/cpu/loops.h"

namespace rode::cpu {
namespace {

// Output blocks of a product: the BLAS keeps its speed, and one matrix feeds some threads.
constexpr std::int64_t kBlock = 512;
// The 3 x 3 window of a filter makes a hundred thousand products of 27 multiplications:
// a call each to the BLAS costs more than they do.
constexpr std::int64_t kSmallExtent = 16, kSmallInner = 64;

bool is_small(const ModeView& view) {
  return view.extent <= kSmallExtent && view.inner <= kSmallInner;
}

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Slabs (extent x inner) that one task takes together.
std::int64_t slabs_per_task(const ModeView& view) {
  return std::max<std::int64_t>(1, kSlice / (view.extent * view.inner));
}

// Runs f(first, last) over batches of slabs.
template <class F>
void for_slabs(Team& team, const ModeView& view, F&& f) {
  const std::int64_t batch = slabs_per_task(view);
  team.run(ceil_div(view.outer, batch),
           [&](std::int64_t task) { f(task * batch, std::min(view.outer, (task + 1) * batch)); });
}

// Runs f(i, height, j, width) over blocks of a rows x cols result.
template <class F>
void for_blocks(Team& team, std::int64_t rows, std::int64_t cols, F&& f) {
  const std::int64_t across = ceil_div(cols, kBlock);
  team.run(ceil_div(rows, kBlock) * across, [&](std::int64_t task) {
    const std::int64_t i = task / across * kBlock, j = task % across * kBlock;
    f(i, std::min(kBlock, rows - i), j, std::min(kBlock, cols - j));
  });
}

void rotate_small(Team& team, const ModeView& view, const float* q, bool into, const float* x,
                  float* y) {
  const std::int64_t n = view.extent, inner = view.inner;
  for_slabs(team, view, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t o = first; o < last; ++o) {
      const float* slab = x + o * n * inner;
      for (std::int64_t i = 0; i < n; ++i) {
        float* out = y + (o * n + i) * inner;
        std::fill(out, out + inner, 0.0F);
        for (std::int64_t k = 0; k < n; ++k) {
          const float factor = into ? q[k * n + i] : q[i * n + k];
          for (std::int64_t t = 0; t < inner; ++t) out[t] += factor * slab[k * inner + t];
        }
      }
    }
  });
}

void gram_small(Team& team, const ModeView& view, const float* x, double* partial, float* gram) {
  const std::int64_t n = view.extent, inner = view.inner, batch = slabs_per_task(view);
  for_slabs(team, view, [&](std::int64_t first, std::int64_t last) {
    double sum[kSmallExtent * kSmallExtent] = {};
    for (std::int64_t o = first; o < last; ++o) {
      const float* slab = x + o * n * inner;
      for (std::int64_t i = 0; i < n; ++i) {
        for (std::int64_t j = i; j < n; ++j) {
          double product = 0;
          for (std::int64_t t = 0; t < inner; ++t) {
            product +=
                static_cast<double>(slab[i * inner + t]) * static_cast<double>(slab[j * inner + t]);
          }
          sum[i * n + j] += product;
        }
      }
    }
    std::copy(sum, sum + n * n, partial + first / batch * n * n);
  });
  for (std::int64_t at = 0; at < n * n; ++at) {
    double sum = 0;
    for (std::int64_t task = 0; task < ceil_div(view.outer, batch); ++task) {
      sum += partial[task * n * n + at];
    }
    gram[at] = static_cast<float>(sum);
  }
}

// extent x (outer * inner): the mode in front, so that one long product does it all.
void unfold(Team& team, const ModeView& view, const float* x, float* out) {
  const std::int64_t row = view.outer * view.inner;
  for_slabs(team, view, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t o = first; o < last; ++o) {
      for (std::int64_t i = 0; i < view.extent; ++i) {
        const float* from = x + (o * view.extent + i) * view.inner;
        std::copy(from, from + view.inner, out + i * row + o * view.inner);
      }
    }
  });
}

}  // namespace

void rotate(Team& team, const ModeView& view, const float* q, bool into, const float* x, float* y) {
  const std::int64_t n = view.extent, inner = view.inner;
  if (is_small(view)) {
    rotate_small(team, view, q, into, x, y);
    return;
  }
  if (inner == 1) {  // the last mode: rows of X times Q or Q^T
    for_blocks(team, view.outer, n,
               [&](std::int64_t i, std::int64_t height, std::int64_t j, std::int64_t width) {
                 gemm(false, !into, height, width, n, 1, x + i * n, n, into ? q + j : q + j * n, n,
                      0, y + i * n + j, n);
               });
    return;
  }
  const auto slab = [&](std::int64_t o, std::int64_t i, std::int64_t height, std::int64_t j,
                        std::int64_t width) {
    const std::int64_t base = o * n * inner;
    gemm(into, false, height, width, n, 1, into ? q + i : q + i * n, n, x + base + j, inner, 0,
         y + base + i * inner + j, inner);
  };
  if (n * inner <= kSlice) {
    for_slabs(team, view, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t o = first; o < last; ++o) slab(o, 0, n, 0, inner);
    });
    return;
  }
  for (std::int64_t o = 0; o < view.outer; ++o) {
    for_blocks(team, n, inner,
               [&](std::int64_t i, std::int64_t height, std::int64_t j, std::int64_t width) {
                 slab(o, i, height, j, width);
               });
  }
}

std::size_t mode_gram_floats(const ModeView& view) {
  if (is_small(view)) {
    const std::int64_t tasks = ceil_div(view.outer, slabs_per_task(view));
    return static_cast<std::size_t>(2 * tasks * view.extent * view.extent);
  }
  const bool unfolded = view.outer > 1 && view.inner > 1;
  return unfolded ? static_cast<std::size_t>(view.numel()) : 0;
}

void mode_gram(Team& team, const ModeView& view, const float* x, float* scratch, float* gram) {
  if (is_small(view)) {
    gram_small(team, view, x, reinterpret_cast<double*>(scratch), gram);
    return;
  }
  const std::int64_t n = view.extent, k = view.outer * view.inner;
  const bool last = view.inner == 1;  // X is k x n, else n x k
  if (view.outer > 1 && !last) {
    unfold(team, view, x, scratch);
    x = scratch;
  }
  const std::int64_t ld = last ? n : k;
  for_blocks(
      team, n, n, [&](std::int64_t i, std::int64_t height, std::int64_t j, std::int64_t width) {
        const float* left = x + i * (last ? 1 : ld);
        const float* right = x + j * (last ? 1 : ld);
        if (i == j) {
          syrk_upper(last, height, k, 1, left, ld, gram + i * n + j, n);
        } else if (i < j) {
          gemm(last, !last, height, width, k, 1, left, ld, right, ld, 0, gram + i * n + j, n);
        }
      });
}

void permute(Team& team, const ModeView& view, const std::int32_t* order, const float* x,
             float* y) {
  for_slabs(team, view, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t o = first; o < last; ++o) {
      for (std::int64_t j = 0; j < view.extent; ++j) {
        const float* from = x + (o * view.extent + order[j]) * view.inner;
        std::copy(from, from + view.inner, y + (o * view.extent + j) * view.inner);
      }
    }
  });
}

}  // namespace rode::cpu
