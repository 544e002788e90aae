// SPDX-License-Identifier: Apache-2.0
// Newton-Schulz with bf16 operands and fp32 sums.
//
// An iterate is kept rounded to bf16; P = b A + c A^2 is rounded without its a I term, so
// that the largest part of a X + X P, a X, is added in fp32.
#include <algorithm>
#include <cstdint>

#include "backend/cpu/kernels.h"
#include "backend/cpu/newton_schulz.h"
#include "backend/cpu/onednn.h"
#include "backend/cpu/products.h"
#include "backend/cpu/tiles.h"
#include "rules/newton_schulz_rule.h"

namespace rode::cpu {
namespace {

// Of 128, 192, 256, 384 this is the fastest on 768 x 768: smaller blocks skip more of the
// lower triangle, larger ones run nearer to full speed.
constexpr std::int64_t kTriangleBlock = 256;
constexpr std::int64_t kPanel = 512;
constexpr std::int64_t kMirrorBlock = 64;

std::int64_t aligned(std::int64_t floats) { return (floats + 15) / 16 * 16; }

struct Products {
  Bf16Blocks gram, square, apply;
};

Products products_of(const NsPlan& plan) {
  const std::int64_t n = plan.short_side(), m = plan.long_side(), ld = plan.cols;
  // Without symmetry: the same loop on one block.
  const std::int64_t block = plan.symmetric ? kTriangleBlock : n;
  const bool tall = plan.tall();
  Products products;
  products.gram = {{n, n, m, tall, !tall, ld, ld, n}, block, block, true};
  products.square = {{n, n, n, false, true, n, n, n}, block, block, true};
  products.apply = tall ? Bf16Blocks{{m, n, n, false, false, n, n, n}, kPanel, n, false}
                        : Bf16Blocks{{n, m, n, false, false, n, ld, ld}, n, kPanel, false};
  return products;
}

// fp32: Y, then A; bf16: X, A and P. A^2 lies in Y until X P takes its place.
struct Space {
  float *y, *a;
  std::uint16_t *x_half, *a_half, *p_half;
  std::byte* scratch;
};

std::int64_t halves(std::int64_t count) { return aligned((count + 1) / 2); }

Space carve(const NsPlan& plan, float* workspace) {
  const std::int64_t mn = plan.rows * plan.cols, nn = plan.short_side() * plan.short_side();
  Space space{};
  space.y = workspace;
  space.a = space.y + aligned(mn);
  float* rest = space.a + aligned(nn);
  space.x_half = reinterpret_cast<std::uint16_t*>(rest);
  rest += halves(mn);
  space.a_half = reinterpret_cast<std::uint16_t*>(rest);
  rest += halves(nn);
  space.p_half = reinterpret_cast<std::uint16_t*>(rest);
  rest += halves(nn);
  space.scratch = reinterpret_cast<std::byte*>(rest);
  return space;
}

struct Scratchpad {
  std::size_t bytes = 0;  // a task
  std::int64_t tasks = 0;
};

Scratchpad prepare(const Products& products) {
  Scratchpad pad;
  for (const Bf16Blocks* product : {&products.gram, &products.square, &products.apply}) {
    pad.bytes = std::max(pad.bytes, product->prepare());
    pad.tasks = std::max(pad.tasks, product->tasks());
  }
  pad.bytes = (pad.bytes + 63) / 64 * 64;
  return pad;
}

// half = half^T = bf16(on_a A + on_s S) on one block of the upper triangle of n x n matrices.
void round_symmetric(const float* a, float on_a, const float* s, float on_s, std::int64_t n,
                     const Bf16Blocks::Part& part, std::uint16_t* half) {
  float tile[kMirrorBlock];
  const std::int64_t bottom = part.i + part.height, right = part.j + part.width;
  for (std::int64_t i0 = part.i; i0 < bottom; i0 += kMirrorBlock) {
    const std::int64_t i1 = std::min(bottom, i0 + kMirrorBlock);
    for (std::int64_t j0 = part.j; j0 < right; j0 += kMirrorBlock) {
      const std::int64_t j1 = std::min(right, j0 + kMirrorBlock);
      for (std::int64_t i = i0; i < i1; ++i) {
        const std::int64_t from = std::max(i, j0);
        if (from >= j1) break;
        combine(tile, on_a, a + i * n + from, on_s, s + i * n + from, j1 - from);
        std::uint16_t* row = half + i * n;
        narrow_nearest(tile, row + from, j1 - from);
        for (std::int64_t j = from; j < j1; ++j) half[j * n + i] = row[j];
      }
    }
  }
}

// Y' = a X + Y for one tile.
const float* next_iterate(const Space& space, float a, std::int64_t at, std::int64_t n,
                          float* tile) {
  widen(space.x_half + at, tile, n);
  combine(tile, a, tile, 1, space.y + at, n);
  return tile;
}

double projection(Team& team, const Space& space, float a, const Sphere& sphere, double* partial) {
  const std::int64_t chunks = chunk_count(sphere.geometry.numel());
  team.run(chunks, [&](std::int64_t chunk) {
    float tile[kTile], w_tile[kTile];
    double sum = 0;
    for_tiles(sphere.geometry, chunk, [&](std::int64_t tight, std::int64_t stored, std::int64_t n) {
      sum +=
          dot(next_iterate(space, a, tight, n, tile), read(*sphere.weight, stored, n, w_tile), n);
    });
    partial[chunk] = sum;
  });
  double t = 0;
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) t += partial[chunk];
  return t / sphere.rho;
}

// X = bf16(factor (a X + Y - t U)): a X is added anew rather than stored, because X takes
// half the bytes of Y.
void round_projected(Team& team, const Space& space, float a, const Sphere& sphere, double t,
                     double factor) {
  const auto along = static_cast<float>(t / sphere.rho), times = static_cast<float>(factor);
  team.run(chunk_count(sphere.geometry.numel()), [&](std::int64_t chunk) {
    float tile[kTile], w_tile[kTile];
    for_tiles(sphere.geometry, chunk, [&](std::int64_t tight, std::int64_t stored, std::int64_t n) {
      next_iterate(space, a, tight, n, tile);
      project(tile, read(*sphere.weight, stored, n, w_tile), along, times, n);
      narrow_nearest(tile, space.x_half + tight, n);
    });
  });
}

template <class F>
void for_all_tiles(Team& team, std::int64_t count, F&& f) {
  team.run(chunk_count(count), [&](std::int64_t chunk) {
    for_tiles(flat(count), chunk, [&](std::int64_t at, std::int64_t, std::int64_t n) { f(at, n); });
  });
}

// a X + Y becomes the next X, or stays in Y as the result.
void finish_iteration(Team& team, const NsPlan& plan, const Space& space, float a,
                      const Sphere* sphere, bool last, double* partial) {
  const std::int64_t mn = plan.rows * plan.cols;
  if (!last && sphere != nullptr && plan.reproject_each) {
    const double t = projection(team, space, a, *sphere, partial);
    round_projected(team, space, a, *sphere, t, plan.guarded ? rules::guard_factor(t) : 1.0);
    return;
  }
  for_all_tiles(team, mn, [&](std::int64_t at, std::int64_t n) {
    float tile[kTile];
    const float* x = next_iterate(space, a, at, n, tile);
    if (last) {
      std::copy(x, x + n, space.y + at);
    } else {
      narrow_nearest(x, space.x_half + at, n);
    }
  });
}

void iterate(Team& team, const NsPlan& plan, const Sphere* sphere, float* workspace,
             double* partial) {
  const Space space = carve(plan, workspace);
  const Products products = products_of(plan);
  const std::size_t pad = prepare(products).bytes;
  const std::int64_t n = plan.short_side();
  const bool tall = plan.tall();
  const auto run = [&](const Bf16Blocks& product, const std::uint16_t* left,
                       const std::uint16_t* right, float* out, auto&& then) {
    team.run(product.tasks(), [&](std::int64_t task) {
      const Bf16Blocks::Part part = product.part(task);
      product.run(part, left, right, out, space.scratch + static_cast<std::size_t>(task) * pad);
      then(part);
    });
  };

  for_all_tiles(team, plan.rows * plan.cols, [&](std::int64_t at, std::int64_t count) {
    narrow_nearest(space.y + at, space.x_half + at, count);
  });
  for (int k = 0; k < plan.steps; ++k) {
    const rules::NsTriple c = rules::ns_triple(plan.coefficients, k);
    run(products.gram, space.x_half, space.x_half, space.a, [&](const Bf16Blocks::Part& part) {
      round_symmetric(space.a, 1, space.a, 0, n, part, space.a_half);
    });
    run(products.square, space.a_half, space.a_half, space.y, [&](const Bf16Blocks::Part& part) {
      round_symmetric(space.a, static_cast<float>(c.b), space.y, static_cast<float>(c.c), n, part,
                      space.p_half);
    });
    run(products.apply, tall ? space.x_half : space.p_half, tall ? space.p_half : space.x_half,
        space.y, [](const Bf16Blocks::Part&) {});
    finish_iteration(team, plan, space, static_cast<float>(c.a), sphere, k + 1 == plan.steps,
                     partial);
  }
}

// Without bf16 instructions: fp32 products of operands that are rounded to bf16. A product
// of two such numbers is exact in fp32, so only the order of the sums differs.
void round_in_place(Team& team, float* x, std::int64_t count) {
  for_all_tiles(team, count, [&](std::int64_t at, std::int64_t n) {
    std::uint16_t half[kTile];
    narrow_nearest(x + at, half, n);
    widen(half, x + at, n);
  });
}

struct RoundedSpace {
  float *x, *y, *a, *rounded, *p;
};

RoundedSpace carve_rounded(const NsPlan& plan, float* workspace) {
  const std::int64_t mn = plan.rows * plan.cols, nn = plan.short_side() * plan.short_side();
  float* squares = workspace + 2 * mn;
  return {workspace, workspace + mn, squares, squares + nn, squares + 2 * nn};
}

float* iterate_rounded(Team& team, const NsPlan& plan, const Sphere* sphere, float* workspace,
                       double* partial) {
  RoundedSpace space = carve_rounded(plan, workspace);
  const std::int64_t n = plan.short_side(), mn = plan.rows * plan.cols;
  round_in_place(team, space.x, mn);
  for (int k = 0; k < plan.steps; ++k) {
    const rules::NsTriple c = rules::ns_triple(plan.coefficients, k);
    gram(team, space.x, plan.rows, plan.cols, plan.symmetric, space.a);
    for_all_tiles(team, n * n, [&](std::int64_t at, std::int64_t count) {
      std::copy(space.a + at, space.a + at + count, space.rounded + at);
    });
    round_in_place(team, space.rounded, n * n);
    square(team, space.rounded, n, plan.symmetric, space.y);
    polynomial(team, space.a, space.y, n, 0, c.b, c.c, space.p);
    round_in_place(team, space.p, n * n);
    apply(team, space.x, space.p, plan.rows, plan.cols, space.y);
    for_all_tiles(team, mn, [&](std::int64_t at, std::int64_t count) {
      combine(space.y + at, static_cast<float>(c.a), space.x + at, 1, space.y + at, count);
    });
    std::swap(space.x, space.y);
    if (k + 1 == plan.steps) break;
    if (sphere != nullptr && plan.reproject_each) {
      const double t = inner_product(team, space.x, *sphere, partial, nullptr);
      reproject(team, space.x, *sphere, t, plan.guarded ? rules::guard_factor(t) : 1.0);
    }
    round_in_place(team, space.x, mn);
  }
  return space.x;
}

}  // namespace

std::size_t ns_bf16_workspace_floats(const NsPlan& plan) {
  const std::int64_t mn = plan.rows * plan.cols, nn = plan.short_side() * plan.short_side();
  if (mn == 0) return 0;
  if (!bf16_products_available()) return static_cast<std::size_t>(2 * mn + 3 * nn);
  const Scratchpad pad = prepare(products_of(plan));
  return static_cast<std::size_t>(aligned(mn) + aligned(nn) + halves(mn) + 2 * halves(nn)) +
         pad.bytes / sizeof(float) * static_cast<std::size_t>(pad.tasks);
}

NsResult newton_schulz_bf16(Team& team, const NsPlan& plan, const Sphere* sphere, float* workspace,
                            double* partial) {
  NsResult result;
  result.kernel = workspace;
  if (plan.rows * plan.cols == 0 || plan.steps == 0) return result;
  if (bf16_products_available()) {
    iterate(team, plan, sphere, workspace, partial);
  } else {
    result.kernel = iterate_rounded(team, plan, sphere, workspace, partial);
  }
  return result;
}

}  // namespace rode::cpu
