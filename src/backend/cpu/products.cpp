// SPDX-License-Identifier: Apache-2.0
// Symmetric and plain products on blocks that depend on the shape alone.
#include "backend/cpu/products.h"

#include <algorithm>

#include "backend/cpu/blas.h"
#include "backend/cpu/loops.h"

namespace rode::cpu {
namespace {

// Blocks large enough that the BLAS keeps its speed, small enough that one large matrix
// still gives several threads work.
constexpr std::int64_t kBlock = 1024;
// Commuting products have no BLAS routine that skips a triangle: smaller blocks skip more.
constexpr std::int64_t kTriangleBlock = 256;
constexpr std::int64_t kMirrorBlock = 64;

// Equal blocks of at most `limit`, a multiple of 16 so that no vector is cut.
struct Blocks {
  Blocks(std::int64_t n, std::int64_t limit) : n_(n) {
    count = std::max<std::int64_t>(1, (n + limit - 1) / limit);
    size_ = ((n + count - 1) / count + 15) / 16 * 16;
    count = std::max<std::int64_t>(1, (n + size_ - 1) / size_);
  }
  std::int64_t begin(std::int64_t i) const { return i * size_; }
  std::int64_t extent(std::int64_t i) const { return std::min(size_, n_ - i * size_); }
  std::int64_t count;

 private:
  std::int64_t n_, size_;
};

// Pair number `task` of the upper triangle of count x count blocks: (i, j), i <= j.
void upper_pair(std::int64_t task, std::int64_t count, std::int64_t& i, std::int64_t& j) {
  i = 0;
  while (task >= count - i) {
    task -= count - i;
    ++i;
  }
  j = i + task;
}

std::int64_t pairs(std::int64_t count) { return count * (count + 1) / 2; }

// Copies the upper triangle onto the lower one, in tiles that stay in L1.
void mirror(Team& team, float* a, std::int64_t n) {
  const Blocks blocks(n, kMirrorBlock);
  team.run(blocks.count, [&](std::int64_t bi) {
    for (std::int64_t bj = bi; bj < blocks.count; ++bj) {
      for (std::int64_t i = blocks.begin(bi); i < blocks.begin(bi) + blocks.extent(bi); ++i) {
        const std::int64_t from = bi == bj ? i + 1 : blocks.begin(bj);
        for (std::int64_t j = from; j < blocks.begin(bj) + blocks.extent(bj); ++j) {
          a[j * n + i] = a[i * n + j];
        }
      }
    }
  });
}

}  // namespace

void gram(Team& team, const float* x, std::int64_t rows, std::int64_t cols, bool symmetric,
          float* a) {
  const bool tall = rows >= cols;
  const std::int64_t n = tall ? cols : rows, k = tall ? rows : cols, ld = cols;
  if (!symmetric) {
    gemm(tall, !tall, n, n, k, 1, x, ld, x, ld, 0, a, n);
    return;
  }
  const Blocks blocks(n, kBlock);
  // Where block i of the short side begins inside X.
  const auto at = [&](std::int64_t i) { return x + blocks.begin(i) * (tall ? 1 : ld); };
  team.run(pairs(blocks.count), [&](std::int64_t task) {
    std::int64_t i = 0, j = 0;
    upper_pair(task, blocks.count, i, j);
    float* out = a + blocks.begin(i) * n + blocks.begin(j);
    if (i == j) {
      syrk_upper(tall, blocks.extent(i), k, 1, at(i), ld, out, n);
    } else {
      gemm(tall, !tall, blocks.extent(i), blocks.extent(j), k, 1, at(i), ld, at(j), ld, 0, out, n);
    }
  });
  mirror(team, a, n);
}

double symmetric_squares(Team& team, const float* a, std::int64_t n, double* partial) {
  const std::int64_t slices = slice_count(n * n), rows = (n + slices - 1) / slices;
  team.run(slices, [&](std::int64_t slice) {
    double sum = 0;
    for (std::int64_t i = slice * rows; i < std::min(n, (slice + 1) * rows); ++i) {
      const auto own = static_cast<double>(a[i * n + i]);
      sum += own * own + 2 * sum_of_squares(a + i * n + i + 1, n - i - 1);
    }
    partial[slice] = sum;
  });
  double total = 0;
  for (std::int64_t slice = 0; slice < slices; ++slice) total += partial[slice];
  return total;
}

void square(Team& team, const float* a, std::int64_t n, bool symmetric, float* s) {
  if (!symmetric) {
    gemm(false, false, n, n, n, 1, a, n, a, n, 0, s, n);
    return;
  }
  const Blocks blocks(n, kBlock);
  team.run(pairs(blocks.count), [&](std::int64_t task) {
    std::int64_t i = 0, j = 0;
    upper_pair(task, blocks.count, i, j);
    float* out = s + blocks.begin(i) * n + blocks.begin(j);
    // A A = A A^T: a rank-n update, half the FLOPs of a product.
    if (i == j) {
      syrk_upper(false, blocks.extent(i), n, 1, a + blocks.begin(i) * n, n, out, n);
    } else {
      gemm(false, true, blocks.extent(i), blocks.extent(j), n, 1, a + blocks.begin(i) * n, n,
           a + blocks.begin(j) * n, n, 0, out, n);
    }
  });
}

void polynomial(Team& team, const float* a_matrix, const float* s, std::int64_t n, double a,
                double b, double c, float* p) {
  const auto diagonal = static_cast<float>(a), first = static_cast<float>(b),
             second = static_cast<float>(c);
  const Blocks blocks(n, kMirrorBlock);
  team.run(blocks.count, [&](std::int64_t bi) {
    for (std::int64_t bj = bi; bj < blocks.count; ++bj) {
      for (std::int64_t i = blocks.begin(bi); i < blocks.begin(bi) + blocks.extent(bi); ++i) {
        const std::int64_t from = bi == bj ? i : blocks.begin(bj);
        for (std::int64_t j = from; j < blocks.begin(bj) + blocks.extent(bj); ++j) {
          const float value = first * a_matrix[i * n + j] + second * s[i * n + j];
          p[i * n + j] = value;
          p[j * n + i] = value;
        }
        if (bi == bj) p[i * n + i] += diagonal;
      }
    }
  });
}

void apply(Team& team, const float* x, const float* p, std::int64_t rows, std::int64_t cols,
           float* y) {
  const bool tall = rows >= cols;
  const Blocks panels(tall ? rows : cols, kBlock);
  team.run(panels.count, [&](std::int64_t i) {
    const std::int64_t begin = panels.begin(i), extent = panels.extent(i);
    if (tall) {
      gemm(false, false, extent, cols, cols, 1, x + begin * cols, cols, p, cols, 0,
           y + begin * cols, cols);
    } else {
      gemm(false, false, rows, extent, rows, 1, p, rows, x + begin, cols, 0, y + begin, cols);
    }
  });
}

void commuting_product(Team& team, const float* a, const float* b, std::int64_t n, float* c) {
  const Blocks blocks(n, kTriangleBlock);
  team.run(pairs(blocks.count), [&](std::int64_t task) {
    std::int64_t i = 0, j = 0;
    upper_pair(task, blocks.count, i, j);
    // B's columns are its rows: reading them as rows keeps both operands contiguous.
    gemm(false, true, blocks.extent(i), blocks.extent(j), n, 1, a + blocks.begin(i) * n, n,
         b + blocks.begin(j) * n, n, 0, c + blocks.begin(i) * n + blocks.begin(j), n);
  });
  mirror(team, c, n);
}

}  // namespace rode::cpu
