// SPDX-License-Identifier: Apache-2.0
// Newton-Schulz with bf16 operands and fp32 sums.
//
// An iterate is kept rounded to bf16; P = b A + c A^2 is rounded without its a I term, so
// that the largest part of a X + X P, a X, is added in fp32.
#include <algorithm>
#include <cstdint>
#include <utility>

#include "backend/cpu/loops.h"
#include "backend/cpu/newton_schulz.h"
#include "backend/cpu/onednn.h"
#include "backend/cpu/products.h"
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
  std::size_t bytes = 0;  // per task
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
  const std::int64_t slices = slice_count(sphere.geometry.numel());
  team.run(slices, [&](std::int64_t slice) {
    float tile[kTile], w_tile[kTile];
    double sum = 0;
    for_tiles(sphere.geometry, slice, [&](std::int64_t tight, std::int64_t stored, std::int64_t n) {
      sum +=
          dot(next_iterate(space, a, tight, n, tile), read(*sphere.weight, stored, n, w_tile), n);
    });
    partial[slice] = sum;
  });
  double t = 0;
  for (std::int64_t slice = 0; slice < slices; ++slice) t += partial[slice];
  return t / sphere.rho;
}

// X = bf16(factor (a X + Y - t U)): a X is computed again rather than stored, because X takes half
// the bytes of Y.
void round_projected(Team& team, const Space& space, float a, const Sphere& sphere, double t,
                     double factor) {
  const auto along = static_cast<float>(t / sphere.rho), times = static_cast<float>(factor);
  team.run(slice_count(sphere.geometry.numel()), [&](std::int64_t slice) {
    float tile[kTile], w_tile[kTile];
    for_tiles(sphere.geometry, slice, [&](std::int64_t tight, std::int64_t stored, std::int64_t n) {
      next_iterate(space, a, tight, n, tile);
      project(tile, read(*sphere.weight, stored, n, w_tile), along, times, n);
      narrow_nearest(tile, space.x_half + tight, n);
    });
  });
}

template <class F>
void for_all_tiles(Team& team, std::int64_t count, F&& f) {
  team.run(slice_count(count), [&](std::int64_t slice) {
    for_tiles(flat(count), slice, [&](std::int64_t at, std::int64_t, std::int64_t n) { f(at, n); });
  });
}

class Bf16Form {
 public:
  Bf16Form(Team& team, const NsPlan& plan, float* workspace, double* partial)
      : team_(team),
        plan_(plan),
        space_(carve(plan, workspace)),
        products_(products_of(plan)),
        pad_(prepare(products_).bytes),
        partial_(partial) {
    for_all_tiles(team_, plan.rows * plan.cols, [&](std::int64_t at, std::int64_t count) {
      narrow_nearest(space_.y + at, space_.x_half + at, count);
    });
  }

  void gram(int) {
    const std::int64_t n = plan_.short_side();
    run(products_.gram, space_.x_half, space_.x_half, space_.a, [&](const Bf16Blocks::Part& part) {
      round_symmetric(space_.a, 1, space_.a, 0, n, part, space_.a_half);
    });
  }
  double gram_squares() { return symmetric_squares(team_, space_.a, plan_.short_side(), partial_); }
  // Leaves X P in Y; a X is added by what follows.
  void advance(int, const rules::NsTriple& c) {
    const std::int64_t n = plan_.short_side();
    const bool tall = plan_.tall();
    a_ = static_cast<float>(c.a);
    run(products_.square, space_.a_half, space_.a_half, space_.y,
        [&](const Bf16Blocks::Part& part) {
          round_symmetric(space_.a, static_cast<float>(c.b), space_.y, static_cast<float>(c.c), n,
                          part, space_.p_half);
        });
    run(products_.apply, tall ? space_.x_half : space_.p_half, tall ? space_.p_half : space_.x_half,
        space_.y, [](const Bf16Blocks::Part&) {});
  }
  double along(const Sphere& sphere) { return projection(team_, space_, a_, sphere, partial_); }
  void project(const Sphere& sphere, double t, double factor) {
    round_projected(team_, space_, a_, sphere, t, factor);
  }
  // a X + Y becomes the next X, or stays in Y as the result.
  void keep(bool last) {
    for_all_tiles(team_, plan_.rows * plan_.cols, [&](std::int64_t at, std::int64_t n) {
      float tile[kTile];
      const float* x = next_iterate(space_, a_, at, n, tile);
      if (last) {
        std::copy(x, x + n, space_.y + at);
      } else {
        narrow_nearest(x, space_.x_half + at, n);
      }
    });
  }
  float* iterate() const { return space_.y; }

 private:
  template <class Then>
  void run(const Bf16Blocks& product, const std::uint16_t* left, const std::uint16_t* right,
           float* out, Then&& then) {
    team_.run(product.tasks(), [&](std::int64_t task) {
      const Bf16Blocks::Part part = product.part(task);
      product.run(part, left, right, out, space_.scratch + static_cast<std::size_t>(task) * pad_);
      then(part);
    });
  }

  Team& team_;
  const NsPlan& plan_;
  Space space_;
  Products products_;
  std::size_t pad_;
  double* partial_;
  float a_ = 0;
};

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

class RoundedForm {
 public:
  RoundedForm(Team& team, const NsPlan& plan, float* workspace, double* partial)
      : team_(team),
        plan_(plan),
        space_(carve_rounded(plan, workspace)),
        count_(plan.rows * plan.cols),
        partial_(partial) {
    round_in_place(team_, space_.x, count_);
  }

  void gram(int) { cpu::gram(team_, space_.x, plan_.rows, plan_.cols, plan_.symmetric, space_.a); }
  double gram_squares() { return symmetric_squares(team_, space_.a, plan_.short_side(), partial_); }
  void advance(int, const rules::NsTriple& c) {
    const std::int64_t n = plan_.short_side();
    for_all_tiles(team_, n * n, [&](std::int64_t at, std::int64_t count) {
      std::copy(space_.a + at, space_.a + at + count, space_.rounded + at);
    });
    round_in_place(team_, space_.rounded, n * n);
    square(team_, space_.rounded, n, plan_.symmetric, space_.y);
    polynomial(team_, space_.a, space_.y, n, 0, c.b, c.c, space_.p);
    round_in_place(team_, space_.p, n * n);
    apply(team_, space_.x, space_.p, plan_.rows, plan_.cols, space_.y);
    for_all_tiles(team_, count_, [&](std::int64_t at, std::int64_t count) {
      combine(space_.y + at, static_cast<float>(c.a), space_.x + at, 1, space_.y + at, count);
    });
    std::swap(space_.x, space_.y);
  }
  double along(const Sphere& sphere) {
    return inner_product(team_, space_.x, sphere, partial_, nullptr);
  }
  void project(const Sphere& sphere, double t, double factor) {
    reproject(team_, space_.x, sphere, t, factor);
    round_in_place(team_, space_.x, count_);
  }
  void keep(bool last) {
    if (!last) round_in_place(team_, space_.x, count_);
  }
  float* iterate() const { return space_.x; }

 private:
  Team& team_;
  const NsPlan& plan_;
  RoundedSpace space_;
  std::int64_t count_;
  double* partial_;
};

}  // namespace

std::size_t ns_bf16_workspace_floats(const NsPlan& plan) {
  const std::int64_t mn = plan.rows * plan.cols, nn = plan.short_side() * plan.short_side();
  if (mn == 0) return 0;
  if (!bf16_products_available()) return static_cast<std::size_t>(2 * mn + 3 * nn);
  const Scratchpad pad = prepare(products_of(plan));
  return static_cast<std::size_t>(aligned(mn) + aligned(nn) + halves(mn) + 2 * halves(nn)) +
         pad.bytes / sizeof(float) * static_cast<std::size_t>(pad.tasks);
}

float* newton_schulz_bf16(Team& team, const NsPlan& plan, const Sphere* sphere, float* workspace,
                          double* partial) {
  if (plan.rows * plan.cols == 0 || plan.steps == 0) return workspace;
  if (bf16_products_available()) {
    Bf16Form form(team, plan, workspace, partial);
    iterate(plan, sphere, form);
    return form.iterate();
  }
  RoundedForm form(team, plan, workspace, partial);
  iterate(plan, sphere, form);
  return form.iterate();
}

}  // namespace rode::cpu
