// SPDX-License-Identifier: Apache-2.0
// Cuts the products of a chunk into work items and deals them to clusters.
#include "backend/cuda/ns_lists.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>
#include <utility>

namespace rode::cuda {
namespace {

int ceil_div(std::int64_t a, std::int64_t b) { return static_cast<int>((a + b - 1) / b); }

// The epilogue in units of one load along K: what an item costs beyond its depth.
constexpr int kEpilogueCost = 2;

void append_items(const Chunk& chunk, std::size_t member, ListKind kind, bool symmetric,
                  std::vector<ProductItem>& items) {
  const auto [group_index, batch] = chunk.position[member];
  const Group& group = chunk.groups[static_cast<std::size_t>(group_index)];
  const std::int64_t n = group.short_side(), m = group.long_side();
  ProductItem item;
  item.group = group_index;
  item.batch = batch;
  item.matrix = chunk.members[member];
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
  int partial = chunk.tiles.empty() ? 0 : chunk.tiles[member].first;
  for (int row = 0; row < rows; row += 2) {
    for (int col = item.mirror != 0 ? row : 0; col < cols; ++col) {
      item.row_tile = row;
      item.col_tile = col;
      item.partial = partial;
      partial += kClusterSize;
      items.push_back(item);
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
  std::vector<ProductItem> items;
  for (const std::size_t member : order) {
    append_items(chunk, member, kind, options.symmetric, items);
  }
  return deal(items, options.clusters);
}

bool can_hold(const WorkList& list) {
  for (int c = 0; c < list.clusters(); ++c) {
    int held = 0, before = -1;
    for (int i = list.lists[static_cast<std::size_t>(c)];
         i < list.lists[static_cast<std::size_t>(c) + 1]; ++i) {
      const ProductItem& item = list.items[static_cast<std::size_t>(i)];
      held = i > list.lists[static_cast<std::size_t>(c)] && item.matrix == before ? held + 1 : 1;
      if (held > kMostHeld) return false;
      before = item.matrix;
    }
  }
  return true;
}

}  // namespace rode::cuda
