// SPDX-License-Identifier: Apache-2.0
// Plans Newton-Schulz for many matrices: programs, chunks, memory and launches.
#include "backend/cuda/ns_plan.h"

#include <algorithm>
#include <map>
#include <utility>

#include "backend/cuda/ns_lists.h"
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

// Symmetric products in units of n^3 for r = m / n.
bool gram_is_cheaper(double r, const Program& program) {
  double gram = 0;
  for (int k = 0; k < program.steps;) {
    const int segment = std::min(rules::gram_segment(program.coefficients, k), program.steps - k);
    gram += 3 * r + 4 * segment - 3;  // rebuild, apply; per iteration P, Q, and G twice
    k += segment;
  }
  return gram <= program.steps * (3 * r + 1);
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

void place(Group& group, Role role, std::int64_t rows, std::int64_t cols, std::size_t element,
           std::size_t& at) {
  RoleMemory& memory = group.memory[role];
  memory = {at, rows, cols, padded(cols), rows * padded(cols), true};
  at = aligned(at + static_cast<std::size_t>(group.count * memory.batch_stride) * element);
}

void place_group(Group& group, const Program& program, std::size_t& at) {
  const std::size_t element = element_bytes(program.dtype);
  const std::int64_t n = group.short_side();
  place(group, kRoleX, group.rows, group.cols, element, at);
  if (program.steps == 0) return;
  place(group, kRoleY, group.rows, group.cols, element, at);
  if (program.sphere) place(group, kRoleU, group.rows, group.cols, element, at);
  place(group, kRoleP, n, n, element, at);
  if (program.gram) {
    for (const Role role : {kRoleT, kRoleQ, kRoleR}) place(group, role, n, n, element, at);
  }
  for (const auto& [view, host] : {std::pair(kRoleXGram, kRoleX), std::pair(kRoleYGram, kRoleY)}) {
    group.memory[view] = {group.memory[host].offset,       n,   n, padded(n),
                          group.memory[host].batch_stride, true};
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

Launch symmetric(Role a, Role b, Role d, int blend, Role c, List list) {
  Launch launch;
  launch.a = a;
  launch.b = b;
  launch.c = c;
  launch.d = d;
  launch.blend = blend;
  launch.list = list;
  return launch;
}

// X <- X P or X Q, which completes iteration k.
Launch apply(Role from, Role factor, Role to, const Program& program, int k) {
  Launch launch = symmetric(from, factor, to, -1, kRoleX, kApplyList);
  launch.kind = Launch::Kind::apply;
  launch.projection = projection_of(program, k);
  launch.iteration = k;
  return launch;
}

void standard_program(Chunk& chunk) {
  Role from = kRoleX, to = kRoleY;
  for (int k = 0; k < chunk.program.steps; ++k) {
    const Role gram = to == kRoleY ? kRoleYGram : kRoleXGram;
    chunk.launches.push_back(symmetric(from, from, gram, -1, kRoleX, kGramList));
    chunk.launches.push_back(symmetric(gram, gram, kRoleP, k, gram, kSquareList));
    chunk.launches.push_back(apply(from, kRoleP, to, chunk.program, k));
    std::swap(from, to);
  }
  chunk.kernel = from;
}

// G = X^T X; P = a I + b G + c G^2; Q <- Q P; G <- P G P; at the end of a segment X <- X Q.
void gram_program(Chunk& chunk) {
  const Program& program = chunk.program;
  Role from = kRoleX, to = kRoleY;
  for (int k = 0; k < program.steps;) {
    const int segment = std::min(rules::gram_segment(program.coefficients, k), program.steps - k);
    const Role g = to == kRoleY ? kRoleYGram : kRoleXGram;
    chunk.launches.push_back(symmetric(from, from, g, -1, kRoleX, kGramList));
    Role q = kRoleQ, next_q = kRoleR;
    for (int j = 0; j < segment; ++j, ++k) {
      const Role p = j == 0 ? kRoleQ : kRoleP;  // the first factor is the product so far
      chunk.launches.push_back(symmetric(g, g, p, k, g, kSquareList));
      if (j > 0) {
        chunk.launches.push_back(symmetric(q, p, next_q, -1, kRoleX, kSquareList));
        std::swap(q, next_q);
      }
      if (j + 1 == segment) break;
      chunk.launches.push_back(symmetric(g, p, kRoleT, -1, kRoleX, kSquareList));
      chunk.launches.push_back(symmetric(kRoleT, p, g, -1, kRoleX, kSquareList));
    }
    ++k;
    chunk.launches.push_back(apply(from, q, to, program, k - 1));
    std::swap(from, to);
  }
  chunk.kernel = from;
}

void find_stretches(Chunk& chunk, const PlanOptions& options) {
  std::map<std::vector<List>, int> known;
  const auto count = static_cast<int>(chunk.launches.size());
  for (int first = 0; first < count;) {
    std::vector<List> kinds;
    int last = first;
    for (; last < count && last - first < kMostPhases; ++last) {
      const Launch& launch = chunk.launches[static_cast<std::size_t>(last)];
      if (last > first && launch.kind != Launch::Kind::symmetric) break;
      kinds.push_back(launch.list);
      if (launch.kind != Launch::Kind::symmetric) {
        ++last;
        break;
      }
    }
    Stretch stretch{first, last - first, kinds.front()};
    if (stretch.count > 1) {
      const auto [entry, fresh] = known.try_emplace(kinds, static_cast<int>(chunk.lists.size()));
      if (fresh) chunk.lists.push_back(make_list(chunk, kinds, options));
      stretch.list = entry->second;
    }
    chunk.stretches.push_back(stretch);
    first = last;
  }
}

void number_tiles(Chunk& chunk) {
  const auto tiles = [](std::int64_t side) {
    return static_cast<int>((side + kTileSide - 1) / kTileSide);
  };
  for (const auto& [group_index, batch] : chunk.position) {
    const Group& group = chunk.groups[static_cast<std::size_t>(group_index)];
    const int count = (tiles(group.rows) + 1) / 2 * tiles(group.cols) * kClusterSize;
    chunk.tiles.push_back({chunk.partials, count});
    chunk.partials += count;
  }
}

void complete(Chunk& chunk, const std::vector<NsMatrix>& matrices, const PlanOptions& options) {
  std::map<std::pair<std::int64_t, std::int64_t>, int> known;
  for (const int index : chunk.members) {
    const NsMatrix& matrix = matrices[static_cast<std::size_t>(index)];
    const auto [entry, fresh] =
        known.try_emplace({matrix.rows, matrix.cols}, static_cast<int>(chunk.groups.size()));
    if (fresh) {
      Group group;
      group.rows = matrix.rows;
      group.cols = matrix.cols;
      chunk.groups.push_back(group);
    }
    Group& group = chunk.groups[static_cast<std::size_t>(entry->second)];
    chunk.position.emplace_back(entry->second, group.count++);
  }
  for (Group& group : chunk.groups) place_group(group, chunk.program, chunk.bytes);
  if (chunk.program.steps == 0) return;
  number_tiles(chunk);
  chunk.lists.resize(kLists);
  for (const List kind : {kGramList, kSquareList, kApplyList}) {
    chunk.lists[kind] = make_list(chunk, {kind}, options);
  }
  chunk.hold = can_hold(chunk.lists[kApplyList]);
  chunk.counted = std::ranges::all_of(
      chunk.tiles, [](const TileRange& range) { return range.count <= kMostCounted; });
  if (chunk.program.gram) {
    gram_program(chunk);
  } else {
    standard_program(chunk);
  }
  find_stretches(chunk, options);
}

}  // namespace

std::size_t element_bytes(NsDType dtype) { return dtype == NsDType::fp32 ? 4 : 2; }

Program program_of(const NsMatrix& matrix) {
  const std::int64_t n = std::min(matrix.rows, matrix.cols), m = std::max(matrix.rows, matrix.cols);
  Program program{matrix.steps, matrix.coefficients, matrix.dtype,
                  false,        matrix.reproject,    matrix.sphere};
  if (program.dtype == NsDType::automatic) program.dtype = NsDType::bf16;
  if (matrix.steps == 0 || n < rules::kSmallestHalfSide) program.dtype = NsDType::fp32;
  if (!matrix.sphere) program.reproject = Reproject::final;
  if (program.reproject == Reproject::final && matrix.steps > 0) {
    const double r = static_cast<double>(m) / static_cast<double>(std::max<std::int64_t>(n, 1));
    const bool pays = n >= kSmallestGramSide && gram_is_cheaper(r, program);
    program.gram = matrix.form == NsForm::gram || (matrix.form == NsForm::automatic && pays);
    // Carried through five iterations, bf16's rounding of the Gram matrix comes close to the
    // bound of agreement; fp16 costs the same, and nothing here leaves its range.
    if (program.gram && program.dtype == NsDType::bf16) program.dtype = NsDType::fp16;
  }
  return program;
}

std::vector<Chunk> plan_chunks(const std::vector<NsMatrix>& matrices, const PlanOptions& options) {
  std::vector<Chunk> chunks;
  std::vector<Program> programs;
  for (const NsMatrix& matrix : matrices) {
    const Program program = program_of(matrix);
    if (std::ranges::find(programs, program) == programs.end()) programs.push_back(program);
  }
  for (const Program& program : programs) {
    std::size_t total = 0;
    for (const NsMatrix& matrix : matrices) {
      if (program_of(matrix) == program) total += footprint(matrix, program).bytes();
    }
    // Chunks of about equal size: a small last one would leave the device idle.
    // What fits with a quarter more is not cut at all.
    std::size_t limit = std::max<std::size_t>(1, options.workspace_limit);
    if (total <= limit + limit / 4) limit += limit / 4;
    const std::size_t share = total / ((total + limit - 1) / limit) + 1;
    std::size_t used = 0;
    for (std::size_t i = 0; i < matrices.size(); ++i) {
      if (!(program_of(matrices[i]) == program)) continue;
      const std::size_t bytes = footprint(matrices[i], program).bytes();
      if (used == 0 || used + bytes > limit || used + bytes / 2 > share) {
        chunks.emplace_back().program = program;
        used = 0;
      }
      chunks.back().members.push_back(static_cast<int>(i));
      used += bytes;
    }
  }
  for (Chunk& chunk : chunks) complete(chunk, matrices, options);
  return chunks;
}

}  // namespace rode::cuda
