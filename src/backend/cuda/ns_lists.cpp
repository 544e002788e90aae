// SPDX-License-Identifier: Apache-2.0
// Cuts the products of a chunk into work items and deals them to clusters.
#include "backend/cuda/ns_lists.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <queue>
#include <utility>

namespace rode::cuda {
namespace {

int ceil_div(std::int64_t a, std::int64_t b) { return static_cast<int>((a + b - 1) / b); }

// The epilogue in units of one load along K: what an item costs beyond its depth.
constexpr int kEpilogueCost = 2;

// Items of all matrices, in order.
struct Items {
  std::vector<ProductItem> all;
  std::map<int, std::size_t> single;  // of a group: the item that still lacks its second tile

  void pair(ProductItem item, int col, int first_row, int second_row) {
    item.col_tile = col;
    item.tiles[0].row = first_row;
    item.tiles[1].row = second_row;
    all.push_back(item);
  }

  // A tile without a neighbour waits for one of the next matrix.
  void lone(ProductItem item, int col, int row) {
    const auto waiting = single.find(item.group);
    if (waiting == single.end()) {
      single[item.group] = all.size();
      pair(item, col, row, kNoTile);
      return;
    }
    ProductTile& second = all[waiting->second].tiles[1];
    second = item.tiles[1];
    second.row = row;
    single.erase(waiting);
  }

  // Tiles on and above the diagonal, each once: columns in pairs of rows that end on the
  // diagonal. An even column has one more, its first; mirrored, those tiles make up every other
  // row of column 0, and are neighbours there.
  void append_symmetric(const ProductItem& item, int side) {
    for (int col = 1; col < side; ++col) {
      for (int row = col % 2 == 0 ? 1 : 0; row < col; row += 2) pair(item, col, row, row + 1);
    }
    int row = 2;
    for (; row + 2 < side; row += 4) pair(item, 0, row, row + 2);
    if (row < side) {
      pair(item, 0, row, 0);
    } else {
      lone(item, 0, 0);
    }
  }
};

void append_items(const Chunk& chunk, std::size_t member, ListKind kind, bool symmetric,
                  Items& items) {
  const auto [group_index, batch] = chunk.position[member];
  const Group& group = chunk.groups[static_cast<std::size_t>(group_index)];
  const std::int64_t n = group.short_side(), m = group.long_side();
  ProductItem item;
  item.group = group_index;
  for (ProductTile& tile : item.tiles) tile = {batch, chunk.members[member], 0};
  int rows = ceil_div(n, kTileSide), cols = rows;
  if (kind == ListKind::apply) {
    rows = ceil_div(group.rows, kTileSide);
    cols = ceil_div(group.cols, kTileSide);
    item.depth = ceil_div(n, kTileDepth);
    item.order = group.tall() ? OperandOrder::k_k : OperandOrder::k_n;
  } else {
    item.depth = ceil_div(kind == ListKind::gram ? m : n, kTileDepth);
    item.order = kind == ListKind::gram && group.tall() ? OperandOrder::m_n : OperandOrder::k_k;
    item.mirror = symmetric ? 1 : 0;
  }
  if (item.mirror != 0) return items.append_symmetric(item, rows);
  item.partial = chunk.tiles.empty() ? 0 : chunk.tiles[member].first;
  for (int row = 0; row < rows; row += 2) {
    for (int col = 0; col < cols; ++col, item.partial += kClusterSize) {
      items.pair(item, col, row, row + 1);
    }
  }
}

// In order, each to the cluster with the least work so far.
WorkList deal(const std::vector<ProductItem>& items, int most_clusters) {
  const int clusters = std::max(1, std::min(most_clusters, static_cast<int>(items.size())));
  using Load = std::pair<std::int64_t, int>;
  std::priority_queue<Load, std::vector<Load>, std::greater<>> free;
  for (int c = 0; c < clusters; ++c) free.emplace(0, c);
  std::vector<std::vector<int>> dealt(static_cast<std::size_t>(clusters));
  for (std::size_t i = 0; i < items.size(); ++i) {
    auto [load, cluster] = free.top();
    free.pop();
    dealt[static_cast<std::size_t>(cluster)].push_back(static_cast<int>(i));
    free.emplace(load + items[i].depth + kEpilogueCost, cluster);
  }
  WorkList list;
  for (const auto& own : dealt) {
    list.lists.push_back(static_cast<int>(list.items.size()));
    for (const int i : own) list.items.push_back(items[static_cast<std::size_t>(i)]);
  }
  list.lists.push_back(static_cast<int>(list.items.size()));
  return list;
}

}  // namespace

WorkList make_list(const Chunk& chunk, ListKind kind, const PlanOptions& options) {
  // Deep and large first: the clusters then finish together.
  std::vector<std::size_t> order(chunk.members.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto cost = [&](std::size_t member) {
    const Group& group = chunk.groups[static_cast<std::size_t>(chunk.position[member].first)];
    const std::int64_t depth = kind == ListKind::gram ? group.long_side() : group.short_side();
    return std::pair(depth, group.rows * group.cols);
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return cost(a) > cost(b); });
  Items items;
  for (const std::size_t member : order) {
    append_items(chunk, member, kind, options.symmetric, items);
  }
  return deal(items.all, options.clusters);
}

WorkList join_lists(const std::vector<WorkList>& lists, const std::vector<List>& phases) {
  int clusters = 0;
  for (const List kind : phases) clusters = std::max(clusters, lists[kind].clusters());
  std::vector<std::map<int, int>> tiles(phases.size());  // of each phase and matrix
  for (std::size_t p = 0; p < phases.size(); ++p) {
    for (const ProductItem& item : lists[phases[p]].items) {
      for (const ProductTile& tile : item.tiles) {
        if (tile.row != kNoTile) ++tiles[p][tile.matrix];
      }
    }
  }
  WorkList joined;
  for (int c = 0; c < clusters; ++c) {
    joined.lists.push_back(static_cast<int>(joined.items.size()));
    for (std::size_t p = 0; p < phases.size(); ++p) {
      const WorkList& from = lists[phases[p]];
      if (c >= from.clusters()) continue;
      const auto at = static_cast<std::size_t>(c);
      for (int i = from.lists[at]; i < from.lists[at + 1]; ++i) {
        ProductItem& item = joined.items.emplace_back(from.items[static_cast<std::size_t>(i)]);
        item.phase = static_cast<int>(p);
        // Two matrices of an item have the same shape, so as many tiles.
        item.need = p == 0 ? 0 : tiles[p - 1][item.tiles[0].matrix];
      }
    }
  }
  joined.lists.push_back(static_cast<int>(joined.items.size()));
  return joined;
}

bool can_hold(const WorkList& list) {
  for (int c = 0; c < list.clusters(); ++c) {
    int held = 0, before = -1;
    for (int i = list.lists[static_cast<std::size_t>(c)];
         i < list.lists[static_cast<std::size_t>(c) + 1]; ++i) {
      const ProductItem& item = list.items[static_cast<std::size_t>(i)];
      const int matrix = item.tiles[0].matrix;
      held = i > list.lists[static_cast<std::size_t>(c)] && matrix == before ? held + 1 : 1;
      if (held > kMostHeld) return false;
      before = matrix;
    }
  }
  return true;
}

}  // namespace rode::cuda
