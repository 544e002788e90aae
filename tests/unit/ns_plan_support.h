// SPDX-License-Identifier: Apache-2.0
// Matrices of mixed shapes for the tests of the CUDA backend's plan.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "backend/cuda/newton_schulz/plan/plan.h"

namespace rode::cuda {

inline constexpr std::size_t kMega = std::size_t{1} << 20;

inline NsMatrix matrix(std::int64_t rows, std::int64_t cols,
                       Reproject reproject = Reproject::guarded) {
  return {.rows = rows, .cols = cols, .steps = 5, .reproject = reproject, .sphere = true};
}

inline std::vector<NsMatrix> mixed(Reproject reproject = Reproject::guarded) {
  std::vector<NsMatrix> list;
  for (const auto& [rows, cols] : std::vector<std::pair<int, int>>{{768, 768},
                                                                   {2048, 768},
                                                                   {768, 2048},
                                                                   {256, 768},
                                                                   {129, 257},
                                                                   {64, 147},
                                                                   {768, 768},
                                                                   {1000, 2048},
                                                                   {512, 4608},
                                                                   {2048, 768},
                                                                   {8960, 1536},
                                                                   {72, 64}}) {
    list.push_back(matrix(rows, cols, reproject));
  }
  return list;
}

inline int tiles(std::int64_t side) { return static_cast<int>((side + kTileSide - 1) / kTileSide); }

}  // namespace rode::cuda
