// SPDX-License-Identifier: Apache-2.0
// Plans Newton-Schulz for many matrices: programs, batches, memory, products and launches.
#include "backend/cuda/newton_schulz/plan/plan.h"

#include <algorithm>
#include <map>
#include <utility>

#include "backend/cuda/newton_schulz/plan/lists.h"
#include "rules/cost.h"
#include "rules/newton_schulz_rule.h"

namespace rode::cuda {
namespace {

// The Gram form's rounding averages out from here on. At equal cost (square matrices) it is
// taken too: all shapes then run in the same launches.
constexpr std::int64_t kSmallestGramSide = 256;
constexpr std::size_t kAlignment = 1024;

std::int64_t padded(std::int64_t n) { return (n + 7) / 8 * 8; }  // 16 bytes of half precision

std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Tiles of 128 skip nearly all of a lower triangle.
bool gram_is_cheaper(double r, const Program& program) {
  return rules::gram_form_cost(r, program.coefficients, program.steps, 1) <=
         rules::standard_form_cost(r, program.steps);
}

// Memory of one matrix of this shape in every role, and what the roles are.
struct Footprint {
  std::size_t iterate = 0, small = 0;
  int iterates = 0, smalls = 0;
  std::size_t bytes() const {
    return static_cast<std::size_t>(iterates) * iterate + static_cast<std::size_t>(smalls) * small;
  }
};

Footprint footprint(const NsMatrix& matrix, const Program& program) {
  const std::int64_t n = std::min(matrix.rows, matrix.cols);
  const std::size_t element = element_bytes(program.dtype);
  Footprint f;
  f.iterate = static_cast<std::size_t>(matrix.rows * padded(matrix.cols)) * element;
  f.small = static_cast<std::size_t>(n * padded(n)) * element;
  f.iterates = (program.steps > 0 ? 2 : 1) + (program.sphere && program.steps > 0 ? 1 : 0);
  f.smalls = program.steps == 0 ? 0 : program.gram ? 4 : 1;
  return f;
}

void place(Bucket& bucket, Role role, std::int64_t rows, std::int64_t cols, std::size_t element,
           std::size_t& at) {
  RoleMemory& memory = bucket.memory[role];
  memory = {at, rows, cols, padded(cols), rows * padded(cols), true};
  at = aligned(at + static_cast<std::size_t>(bucket.count * memory.matrix_stride) * element);
}

void place_bucket(Bucket& bucket, const Program& program, std::size_t& at) {
  const std::size_t element = element_bytes(program.dtype);
  const std::int64_t n = bucket.short_side();
  place(bucket, kRoleX, bucket.rows, bucket.cols, element, at);
  if (program.steps == 0) return;
  place(bucket, kRoleY, bucket.rows, bucket.cols, element, at);
  if (program.sphere) place(bucket, kRoleU, bucket.rows, bucket.cols, element, at);
  place(bucket, kRoleP, n, n, element, at);
  if (program.gram) {
    for (const Role role : {kRoleT, kRoleQ, kRoleR}) place(bucket, role, n, n, element, at);
  }
  for (const auto& [view, host] : {std::pair(kRoleXGram, kRoleX), std::pair(kRoleYGram, kRoleY)}) {
    bucket.memory[view] = {bucket.memory[host].offset,        n,   n, padded(n),
                           bucket.memory[host].matrix_stride, true};
  }
}

Projection projection_of(const Program& program, int k) {
  if (!program.sphere) return Projection::none;
  if (k + 1 == program.steps) return Projection::measure;
  switch (program.reproject) {
    case Reproject::guarded: return Projection::guarded;
    case Reproject::every: return Projection::every;
    case Reproject::final: break;
  }
  return Projection::none;
}

Product symmetric(Role a, Role b, Role d, int blend, Role c, List list) {
  Product product;
  product.a = a;
  product.b = b;
  product.c = c;
  product.d = d;
  product.blend = blend;
  product.list = list;
  return product;
}

// X <- X P or X Q, which completes iteration k.
Product apply(Role from, Role factor, Role to, const Program& program, int k) {
  Product product = symmetric(from, factor, to, -1, kRoleX, kApplyList);
  product.kind = Product::Kind::apply;
  product.projection = projection_of(program, k);
  product.iteration = k;
  return product;
}

void standard_program(Batch& batch) {
  Role from = kRoleX, to = kRoleY;
  for (int k = 0; k < batch.program.steps; ++k) {
    const Role gram = to == kRoleY ? kRoleYGram : kRoleXGram;
    batch.products.push_back(symmetric(from, from, gram, -1, kRoleX, kGramList));
    batch.products.push_back(symmetric(gram, gram, kRoleP, k, gram, kSquareList));
    batch.products.push_back(apply(from, kRoleP, to, batch.program, k));
    std::swap(from, to);
  }
  batch.result = from;
}

// G = X^T X; P = a I + b G + c G^2; Q <- Q P; G <- P G P; at the end of a segment X <- X Q.
void gram_program(Batch& batch) {
  const Program& program = batch.program;
  Role from = kRoleX, to = kRoleY;
  for (int k = 0; k < program.steps;) {
    const int segment = std::min(rules::gram_segment(program.coefficients, k), program.steps - k);
    const Role g = to == kRoleY ? kRoleYGram : kRoleXGram;
    batch.products.push_back(symmetric(from, from, g, -1, kRoleX, kGramList));
    Role q = kRoleQ, next_q = kRoleR;
    for (int j = 0; j < segment; ++j, ++k) {
      const Role p = j == 0 ? kRoleQ : kRoleP;  // the first factor is the product so far
      batch.products.push_back(symmetric(g, g, p, k, g, kSquareList));
      if (j > 0) {
        batch.products.push_back(symmetric(q, p, next_q, -1, kRoleX, kSquareList));
        std::swap(q, next_q);
      }
      if (j + 1 == segment) break;
      batch.products.push_back(symmetric(g, p, kRoleT, -1, kRoleX, kSquareList));
      batch.products.push_back(symmetric(kRoleT, p, g, -1, kRoleX, kSquareList));
    }
    ++k;
    batch.products.push_back(apply(from, q, to, program, k - 1));
    std::swap(from, to);
  }
  batch.result = from;
}

void make_launches(Batch& batch, const PlanOptions& options) {
  std::map<std::vector<List>, int> known;
  const auto count = static_cast<int>(batch.products.size());
  for (int first = 0; first < count;) {
    std::vector<List> kinds;
    int last = first;
    for (; last < count && last - first < kMostPhases; ++last) {
      const Product& product = batch.products[static_cast<std::size_t>(last)];
      if (last > first && product.kind != Product::Kind::symmetric) break;
      kinds.push_back(product.list);
      if (product.kind != Product::Kind::symmetric) {
        ++last;
        break;
      }
    }
    Launch launch{first, last - first, kinds.front()};
    if (launch.count > 1) {
      const auto [entry, fresh] = known.try_emplace(kinds, static_cast<int>(batch.lists.size()));
      if (fresh) batch.lists.push_back(make_list(batch, kinds, options));
      launch.list = entry->second;
    }
    batch.launches.push_back(launch);
    first = last;
  }
}

void number_tiles(Batch& batch) {
  const auto tiles = [](std::int64_t side) {
    return static_cast<int>((side + kTileSide - 1) / kTileSide);
  };
  for (const auto& [bucket_index, in_bucket] : batch.position) {
    const Bucket& bucket = batch.buckets[static_cast<std::size_t>(bucket_index)];
    const int count = (tiles(bucket.rows) + 1) / 2 * tiles(bucket.cols) * kClusterSize;
    batch.tiles.push_back({batch.partials, count});
    batch.partials += count;
  }
}

void complete(Batch& batch, const std::vector<NsMatrix>& matrices, const PlanOptions& options) {
  std::map<std::pair<std::int64_t, std::int64_t>, int> known;
  for (const int index : batch.members) {
    const NsMatrix& matrix = matrices[static_cast<std::size_t>(index)];
    const auto [entry, fresh] =
        known.try_emplace({matrix.rows, matrix.cols}, static_cast<int>(batch.buckets.size()));
    if (fresh) {
      Bucket bucket;
      bucket.rows = matrix.rows;
      bucket.cols = matrix.cols;
      batch.buckets.push_back(bucket);
    }
    Bucket& bucket = batch.buckets[static_cast<std::size_t>(entry->second)];
    batch.position.emplace_back(entry->second, bucket.count++);
  }
  for (Bucket& bucket : batch.buckets) place_bucket(bucket, batch.program, batch.bytes);
  if (batch.program.steps == 0) return;
  number_tiles(batch);
  batch.lists.resize(kLists);
  for (const List kind : {kGramList, kSquareList, kApplyList}) {
    batch.lists[kind] = make_list(batch, {kind}, options);
  }
  batch.hold = can_hold(batch.lists[kApplyList]);
  batch.counted = std::ranges::all_of(
      batch.tiles, [](const TileRange& range) { return range.count <= kMostCounted; });
  if (batch.program.gram) {
    gram_program(batch);
  } else {
    standard_program(batch);
  }
  make_launches(batch, options);
}

}  // namespace

std::size_t element_bytes(NsDType dtype) { return dtype == NsDType::fp32 ? 4 : 2; }

Program program_of(const NsMatrix& matrix, bool symmetric) {
  const std::int64_t n = std::min(matrix.rows, matrix.cols), m = std::max(matrix.rows, matrix.cols);
  Program program{matrix.steps, matrix.coefficients, matrix.dtype,
                  false,        matrix.reproject,    matrix.sphere};
  if (program.dtype == NsDType::automatic) program.dtype = NsDType::bf16;
  if (matrix.steps == 0 || !rules::half_pays(n)) program.dtype = NsDType::fp32;
  if (!matrix.sphere) program.reproject = Reproject::final;
  const double r = static_cast<double>(m) / static_cast<double>(std::max<std::int64_t>(n, 1));
  const bool pays = n >= kSmallestGramSide && gram_is_cheaper(r, program);
  program.gram =
      rules::takes_gram_form(matrix.form, matrix.steps, program.reproject, symmetric, pays);
  // Carried through five iterations, bf16's rounding of the Gram matrix comes close to the
  // bound of agreement; fp16 costs the same, and nothing here leaves its range.
  if (program.gram && program.dtype == NsDType::bf16) program.dtype = NsDType::fp16;
  return program;
}

std::vector<Batch> plan_batches(const std::vector<NsMatrix>& matrices, const PlanOptions& options) {
  std::vector<Batch> batches;
  std::vector<Program> programs;
  for (const NsMatrix& matrix : matrices) {
    const Program program = program_of(matrix, options.symmetric);
    if (std::ranges::find(programs, program) == programs.end()) programs.push_back(program);
  }
  for (const Program& program : programs) {
    std::size_t total = 0;
    for (const NsMatrix& matrix : matrices) {
      if (program_of(matrix, options.symmetric) == program)
        total += footprint(matrix, program).bytes();
    }
    // Batches of about equal size: a small last one would leave the device idle.
    // What fits with a quarter more is not cut at all.
    std::size_t limit = std::max<std::size_t>(1, options.workspace_limit);
    if (total <= limit + limit / 4) limit += limit / 4;
    const std::size_t share = total / ((total + limit - 1) / limit) + 1;
    std::size_t used = 0;
    for (std::size_t i = 0; i < matrices.size(); ++i) {
      if (!(program_of(matrices[i], options.symmetric) == program)) continue;
      const std::size_t bytes = footprint(matrices[i], program).bytes();
      if (used == 0 || used + bytes > limit || used + bytes / 2 > share) {
        batches.emplace_back().program = program;
        used = 0;
      }
      batches.back().members.push_back(static_cast<int>(i));
      used += bytes;
    }
  }
  for (Batch& batch : batches) complete(batch, matrices, options);
  return batches;
}

}  // namespace rode::cuda
