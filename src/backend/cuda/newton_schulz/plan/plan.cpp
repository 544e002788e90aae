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

// Rows begin at multiples of 16 bytes: TMA asks for it.
std::int64_t padded(std::int64_t n, std::size_t element = 2) {
  const std::int64_t run = element == 1 ? 16 : 8;
  return (n + run - 1) / run * run;
}

// Vectors of the split form are read by whole pairs of tiles.
std::int64_t padded_vector(std::int64_t n) {
  constexpr std::int64_t kStrip = 2 * std::int64_t{kTileSide};
  return (n + kStrip - 1) / kStrip * kStrip;
}

std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Tiles of 128 skip nearly all of a lower triangle.
bool gram_is_cheaper(double r, const Program& program) {
  return rules::gram_form_cost(r, program.coefficients, program.steps, 1) <=
         rules::standard_form_cost(r, program.steps);
}

// A matrix of one shape in one role.
struct Place {
  Role role;
  std::int64_t rows, cols;
  std::size_t element;
  std::int64_t stride() const { return element == 4 && rows == 1 ? cols : padded(cols, element); }
  std::int64_t matrix_stride() const { return rows * stride(); }
};

// What a matrix of this shape has memory of its own for.
std::vector<Place> places(std::int64_t rows, std::int64_t cols, const Program& program) {
  const std::int64_t n = std::min(rows, cols), m = std::max(rows, cols);
  const std::size_t element = element_bytes(program.dtype);
  std::vector<Place> list{{kRoleX, rows, cols, element}};
  if (program.steps == 0) return list;
  const bool split = program.dtype == NsDType::fp8;
  if (!split) list.push_back({kRoleY, rows, cols, element});
  if (program.sphere) list.push_back({kRoleU, rows, cols, element});
  list.push_back({kRoleP, n, n, split ? 1 : element});
  if (program.gram) {
    for (const Role role : {kRoleT, kRoleQ, kRoleR}) list.push_back({role, n, n, element});
  }
  if (split) {
    const std::int64_t parts = (m + kTileSide - 1) / kTileSide;
    list.push_back({kRoleXLong, n, m, 1});
    list.push_back({kRoleXShort, m, n, 1});
    list.push_back({kRoleO, n, n, 1});
    list.push_back({kRoleD, 1, padded_vector(n), 4});
    list.push_back({kRoleF, 1, padded_vector(n), 4});
    list.push_back({kRoleSquares, parts, padded_vector(n), 4});
  }
  return list;
}

std::size_t footprint(const NsMatrix& matrix, const Program& program) {
  std::size_t bytes = 0;
  for (const Place& place : places(matrix.rows, matrix.cols, program)) {
    bytes += static_cast<std::size_t>(place.matrix_stride()) * place.element;
  }
  return bytes;
}

void place_bucket(Bucket& bucket, const Program& program, std::size_t& at) {
  for (const Place& place : places(bucket.rows, bucket.cols, program)) {
    bucket.memory[place.role] = {at,
                                 place.rows,
                                 place.cols,
                                 place.stride(),
                                 place.matrix_stride(),
                                 true,
                                 static_cast<int>(place.element)};
    at = aligned(at +
                 static_cast<std::size_t>(bucket.count * place.matrix_stride()) * place.element);
  }
  if (!bucket.memory[kRoleY].used) return;
  const std::int64_t n = bucket.short_side();
  for (const auto& [view, host] : {std::pair(kRoleXGram, kRoleX), std::pair(kRoleYGram, kRoleY)}) {
    const RoleMemory& memory = bucket.memory[host];
    bucket.memory[view] = {memory.offset,        n,    n,           padded(n),
                           memory.matrix_stride, true, memory.bytes};
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

// The split form: O, off(P') and the factors, and the iterate in its place.
void split_program(Batch& batch) {
  for (int k = 0; k < batch.program.steps; ++k) {
    batch.products.push_back(symmetric(kRoleXLong, kRoleXLong, kRoleO, -1, kRoleO, kGramList));
    batch.products.push_back(symmetric(kRoleO, kRoleO, kRoleP, k, kRoleO, kSquareList));
    batch.products.push_back(apply(kRoleXShort, kRoleP, kRoleX, batch.program, k));
    for (std::size_t i = batch.products.size() - 3; i < batch.products.size(); ++i) {
      batch.products[i].iteration = k;
    }
  }
  batch.result = kRoleX;
}

// G = X^T X; P = a I + b G + c G^2; Q <- Q P; G <- P G P; at the end of a segment X <- X Q.
void gram_program(Batch& batch) {
  const Program& program = batch.program;
  Role from = kRoleX, to = kRoleY;
  for (int first = 0, end = 0; first < program.steps; first = end) {
    end = rules::gram_segment_end(program.coefficients, first, program.steps);
    const Role g = to == kRoleY ? kRoleYGram : kRoleXGram;
    batch.products.push_back(symmetric(from, from, g, -1, kRoleX, kGramList));
    Role q = kRoleQ, next_q = kRoleR;
    for (int k = first; k < end; ++k) {
      const Role p = k == first ? kRoleQ : kRoleP;  // the first factor is the product so far
      batch.products.push_back(symmetric(g, g, p, k, g, kSquareList));
      if (k > first) {
        batch.products.push_back(symmetric(q, p, next_q, -1, kRoleX, kSquareList));
        std::swap(q, next_q);
      }
      if (k + 1 == end) break;
      batch.products.push_back(symmetric(g, p, kRoleT, -1, kRoleX, kSquareList));
      batch.products.push_back(symmetric(kRoleT, p, g, -1, kRoleX, kSquareList));
    }
    batch.products.push_back(apply(from, q, to, program, end - 1));
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
  } else if (batch.program.dtype == NsDType::fp8) {
    split_program(batch);
  } else {
    standard_program(batch);
  }
  make_launches(batch, options);
}

}  // namespace

NsDType iterate_dtype(NsDType dtype) { return dtype == NsDType::fp8 ? NsDType::fp16 : dtype; }

std::size_t element_bytes(NsDType dtype) { return dtype == NsDType::fp32 ? 4 : 2; }

Program program_of(const NsMatrix& matrix, bool symmetric) {
  const std::int64_t n = std::min(matrix.rows, matrix.cols), m = std::max(matrix.rows, matrix.cols);
  Program program{
      matrix.steps, matrix.coefficients, rules::products_dtype(matrix.dtype, true, matrix.steps, n),
      false,        matrix.reproject,    matrix.sphere};
  if (!matrix.sphere) program.reproject = Reproject::final;
  const double r = static_cast<double>(m) / static_cast<double>(std::max<std::int64_t>(n, 1));
  const bool pays = n >= kSmallestGramSide && gram_is_cheaper(r, program);
  program.gram =
      program.dtype != NsDType::fp8 &&
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
      if (program_of(matrix, options.symmetric) == program) total += footprint(matrix, program);
    }
    // Batches of about equal size: a small last one would leave the device idle.
    // What fits with a quarter more is not cut at all.
    std::size_t limit = std::max<std::size_t>(1, options.workspace_limit);
    if (total <= limit + limit / 4) limit += limit / 4;
    const std::size_t share = total / ((total + limit - 1) / limit) + 1;
    std::size_t used = 0;
    for (std::size_t i = 0; i < matrices.size(); ++i) {
      if (!(program_of(matrices[i], options.symmetric) == program)) continue;
      const std::size_t bytes = footprint(matrices[i], program);
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
