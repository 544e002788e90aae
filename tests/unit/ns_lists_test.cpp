// SPDX-License-Identifier: Apache-2.0
// The work lists of the CUDA backend's products: every tile once, no waiting in circles, work even.
#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "backend/cuda/newton_schulz/plan/lists.h"
#include "unit/ns_plan_support.h"

namespace rode::cuda {
namespace {

TEST(NsLists, ProductsCoverEveryTileOnce) {
  const std::vector<NsMatrix> matrices = mixed();
  for (const Batch& batch : plan_batches(matrices, {.workspace_limit = 512 * kMega})) {
    for (const List list : {kGramList, kSquareList, kApplyList}) {
      std::map<int, std::set<std::pair<int, int>>> covered;
      for (const ProductItem& item : batch.lists[list].items) {
        EXPECT_GT(item.depth, 0);
        for (int rank = 0; rank < kClusterSize; ++rank) {
          const auto [in_bucket, matrix, row] = item.tiles[rank];
          const int col = item.col_tile;
          if (row == kNoTile) continue;
          EXPECT_TRUE(covered[matrix].insert({row, col}).second);
          if (item.mirror != 0 && row != col) {
            EXPECT_TRUE(covered[matrix].insert({col, row}).second);
          }
        }
      }
      for (const int index : batch.members) {
        const NsMatrix& m = matrices[static_cast<std::size_t>(index)];
        const bool apply = list == kApplyList;
        const int n = tiles(std::min(m.rows, m.cols));
        for (int row = 0; row < (apply ? tiles(m.rows) : n); ++row) {
          for (int col = 0; col < (apply ? tiles(m.cols) : n); ++col) {
            EXPECT_TRUE(covered[index].contains({row, col})) << index << ": " << row << ", " << col;
          }
        }
      }
    }
  }
}

// Half of a symmetric product's tiles are computed: a single tile too many for all matrices of
// a shape, and two matrices in one item only where both CTAs load their own right operand.
TEST(NsLists, SymmetricProductsComputeNoTileTwice) {
  for (const Batch& batch : plan_batches(mixed(), {.workspace_limit = 512 * kMega})) {
    std::map<int, int> lacking;
    for (const ProductItem& item : batch.lists[kSquareList].items) {
      for (const ProductTile& tile : item.tiles)
        lacking[item.bucket] += tile.row == kNoTile ? 1 : 0;
      EXPECT_NE(item.tiles[0].row, kNoTile);
      EXPECT_EQ(item.tiles[0].in_bucket == item.tiles[1].in_bucket,
                item.tiles[0].matrix == item.tiles[1].matrix);
    }
    for (const auto& [bucket, count] : lacking) EXPECT_LE(count, 1) << bucket;
    for (const ProductItem& item : batch.lists[kApplyList].items) {
      EXPECT_EQ(item.tiles[0].matrix, item.tiles[1].matrix);
      EXPECT_EQ(item.tiles[0].row + 1, item.tiles[1].row);
    }
  }
}

// Launches that run as one: every launch is in one stretch, in order; in its list each phase has
// the items of its kind, after those of the phase before it, and waits for all tiles of those.
TEST(NsLists, StretchesAreTheLaunchesInOrder) {
  for (const Reproject reproject : {Reproject::guarded, Reproject::final}) {
    for (const Batch& batch : plan_batches(mixed(reproject), {.workspace_limit = 512 * kMega})) {
      int at = 0, joined = 0;
      for (const Stretch& stretch : batch.stretches) {
        EXPECT_EQ(stretch.first, at);
        EXPECT_LE(stretch.count, kMostPhases);
        at += stretch.count;
        const WorkList& list = batch.lists[static_cast<std::size_t>(stretch.list)];
        if (stretch.count == 1) continue;
        ++joined;
        std::map<std::pair<int, int>, int> tiles;  // of (phase, matrix)
        for (const ProductItem& item : list.items) {
          for (const ProductTile& tile : item.tiles) {
            tiles[{item.phase, tile.matrix}] += tile.row == kNoTile ? 0 : 1;
          }
        }
        for (int p = 0; p < stretch.count; ++p) {
          const Launch& launch = batch.launches[static_cast<std::size_t>(stretch.first + p)];
          EXPECT_EQ(launch.kind, Launch::Kind::symmetric);
          int items = 0;
          for (const ProductItem& item : list.items) items += item.phase == p ? 1 : 0;
          EXPECT_EQ(items, static_cast<int>(batch.lists[launch.list].items.size()));
        }
        for (int c = 0; c < list.clusters(); ++c) {
          const auto own = static_cast<std::size_t>(c);
          for (int i = list.lists[own]; i < list.lists[own + 1]; ++i) {
            const ProductItem& item = list.items[static_cast<std::size_t>(i)];
            const bool first = i == list.lists[own];
            EXPECT_GE(item.phase, first ? 0 : list.items[static_cast<std::size_t>(i - 1)].phase);
            for (const ProductTile& tile : item.tiles) {
              const int before = item.phase == 0 ? 0 : tiles[{item.phase - 1, tile.matrix}];
              EXPECT_EQ(item.need, before);
            }
          }
        }
      }
      EXPECT_EQ(at, static_cast<int>(batch.launches.size()));
      EXPECT_EQ(joined > 0, batch.program.steps > 0);
    }
  }
}

TEST(NsLists, PartialSumsOfMatricesAreApart) {
  for (const Batch& batch : plan_batches(mixed(), {.workspace_limit = 512 * kMega})) {
    std::map<int, TileRange> range;
    for (std::size_t i = 0; i < batch.members.size(); ++i) range[batch.members[i]] = batch.tiles[i];
    std::map<int, std::set<int>> used;
    std::set<int> all;
    for (const ProductItem& item : batch.lists[kApplyList].items) {
      for (int partial = item.partial; partial < item.partial + kClusterSize; ++partial) {
        EXPECT_TRUE(all.insert(partial).second);
        used[item.tiles[0].matrix].insert(partial);
      }
    }
    for (const auto& [index, partials] : used) {
      EXPECT_EQ(*partials.begin(), range[index].first);
      EXPECT_EQ(static_cast<int>(partials.size()), range[index].count);
      EXPECT_EQ(*partials.rbegin(), range[index].first + range[index].count - 1);
    }
    EXPECT_EQ(static_cast<int>(all.size()), batch.partials);
  }
}

// Clusters work through a list whose tiles are held (hopper/held.cuh): an item is measured once
// the tile two before it, of the same warpgroup, was put down, which needs the one before that
// to have left; tiles leave in order, each when all of its matrix are measured. False: they wait
// for each other for ever.
bool all_leave(const WorkList& list) {
  const auto clusters = static_cast<std::size_t>(list.clusters());
  std::map<int, int> missing;  // items of a matrix not yet measured
  for (const ProductItem& item : list.items) ++missing[item.tiles[0].matrix];
  std::vector<int> measured(clusters, 0), left(clusters, 0);  // how many, in order
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t c = 0; c < clusters; ++c) {
      const int first = list.lists[c], count = list.lists[c + 1] - first;
      if (measured[c] < count && measured[c] - 4 < left[c]) {
        --missing[list.items[static_cast<std::size_t>(first + measured[c]++)].tiles[0].matrix];
        moved = true;
      }
      if (left[c] < measured[c] &&
          missing[list.items[static_cast<std::size_t>(first + left[c])].tiles[0].matrix] == 0) {
        ++left[c];
        moved = true;
      }
    }
  }
  for (std::size_t c = 0; c < clusters; ++c) {
    if (left[c] < list.lists[c + 1] - list.lists[c]) return false;
  }
  return true;
}

TEST(NsLists, HeldTilesNeverWaitInACircle) {
  std::vector<NsMatrix> decoder;
  for (int layer = 0; layer < 4; ++layer) {
    for (const auto& [rows, cols] : std::vector<std::pair<int, int>>{
             {768, 768}, {256, 768}, {2048, 768}, {768, 2048}, {512, 256}, {3072, 768}}) {
      decoder.push_back(matrix(rows, cols));
    }
  }
  for (const int clusters : {1, 3, 16, 60, 66}) {
    for (const auto& matrices : {decoder, mixed()}) {
      for (const Batch& batch :
           plan_batches(matrices, {.workspace_limit = 512 * kMega, .clusters = clusters})) {
        if (batch.hold) {
          EXPECT_TRUE(all_leave(batch.lists[kApplyList])) << clusters;
        }
      }
    }
  }
  EXPECT_TRUE(plan_batches(decoder, {.workspace_limit = 512 * kMega}).front().hold);
  // 420 items of one matrix on 66 clusters are more than can be held.
  const Batch large = plan_batches({matrix(8960, 1536)}, {.workspace_limit = 512 * kMega}).front();
  EXPECT_FALSE(large.hold);
  EXPECT_FALSE(all_leave(large.lists[kApplyList]));
}

// Clusters end within one item of each other.
TEST(NsLists, WorkIsDealtEvenly) {
  std::vector<NsMatrix> matrices;
  for (int layer = 0; layer < 12; ++layer) {
    for (const auto& [rows, cols] :
         std::vector<std::pair<int, int>>{{768, 768}, {256, 768}, {2048, 768}, {768, 2048}}) {
      matrices.push_back(matrix(rows, cols));
    }
  }
  for (const Batch& batch : plan_batches(matrices, {.workspace_limit = 1024 * kMega})) {
    const WorkList& list = batch.lists[kGramList];
    std::vector<int> work;
    int deepest = 0;
    for (int c = 0; c < list.clusters(); ++c) {
      int sum = 0;
      for (int i = list.lists[static_cast<std::size_t>(c)];
           i < list.lists[static_cast<std::size_t>(c) + 1]; ++i) {
        sum += list.items[static_cast<std::size_t>(i)].depth;
        deepest = std::max(deepest, list.items[static_cast<std::size_t>(i)].depth);
      }
      work.push_back(sum);
    }
    const auto [least, most] = std::minmax_element(work.begin(), work.end());
    EXPECT_LE(*most - *least, deepest + 8);
  }
}

// Loads along K until the last cluster has done its list, each item begun when the phase before has
// completed its matrices; and the loads that each of `most` clusters would have if all had the
// same.
std::pair<double, double> time_of(const WorkList& list, int most) {
  constexpr int kEpilogue = 2;
  const auto clusters = static_cast<std::size_t>(list.clusters());
  std::vector<int> at(list.lists.begin(), list.lists.end() - 1);
  std::vector<int> time(clusters, 0);
  std::map<std::pair<int, int>, int> complete;  // of (phase, matrix)
  double work = 0;
  for (int phase = 0; phase < kMostPhases; ++phase) {
    for (std::size_t c = 0; c < clusters; ++c) {
      for (; at[c] < list.lists[c + 1]; ++at[c]) {
        const ProductItem& item = list.items[static_cast<std::size_t>(at[c])];
        if (item.phase != phase) break;
        for (const ProductTile& tile : item.tiles) {
          time[c] = std::max(time[c], complete[{phase - 1, tile.matrix}]);
        }
        time[c] += item.depth + kEpilogue;
        work += item.depth + kEpilogue;
        for (const ProductTile& tile : item.tiles) {
          int& last = complete[{phase, tile.matrix}];
          last = std::max(last, time[c]);
        }
      }
    }
  }
  for (std::size_t c = 0; c < clusters; ++c) EXPECT_EQ(at[c], list.lists[c + 1]);
  return {*std::max_element(time.begin(), time.end()), work / most};
}

// Dealt phase by phase, the Gram form of these shapes would leave a seventh of the device idle.
TEST(NsLists, PhasesOfAStretchTogetherAreDealtEvenly) {
  std::vector<NsMatrix> decoder;
  for (int layer = 0; layer < 28; ++layer) {
    for (const auto& [rows, cols] : std::vector<std::pair<int, int>>{{1536, 1536},
                                                                     {1536, 1536},
                                                                     {256, 1536},
                                                                     {256, 1536},
                                                                     {8960, 1536},
                                                                     {8960, 1536},
                                                                     {1536, 8960}}) {
      decoder.push_back(matrix(rows, cols, Reproject::final));
    }
  }
  constexpr int kClusters = 66;
  double taken = 0, even = 0;
  for (const Batch& batch :
       plan_batches(decoder, {.workspace_limit = 512 * kMega, .clusters = kClusters})) {
    for (const Stretch& stretch : batch.stretches) {
      if (stretch.count == 1) continue;
      const auto [own_taken, own_even] =
          time_of(batch.lists[static_cast<std::size_t>(stretch.list)], kClusters);
      taken += own_taken;
      even += own_even;
    }
  }
  EXPECT_LT(taken, 1.04 * even);
}

}  // namespace
}  // namespace rode::cuda
