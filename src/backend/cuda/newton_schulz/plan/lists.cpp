// SPDX-License-Identifier: Apache-2.0
// Cuts the products of a batch into work items and deals them to clusters.
#include "backend/cuda/newton_schulz/plan/lists.h"

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
  std::map<int, std::size_t> single;  // of a bucket: the item that still lacks its second tile

  void pair(ProductItem item, int col, int first_row, int second_row) {
    item.col_tile = col;
    item.tiles[0].row = first_row;
    item.tiles[1].row = second_row;
    all.push_back(item);
  }

  // A tile without a neighbour waits for one of the next matrix.
  void lone(ProductItem item, int col, int row) {
    const auto waiting = single.find(item.bucket);
    if (waiting == single.end()) {
      single[item.bucket] = all.size();
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

void append_items(const Batch& batch, std::size_t member, List kind, bool symmetric, Items& items) {
  const auto [bucket_index, in_bucket] = batch.position[member];
  const Bucket& bucket = batch.buckets[static_cast<std::size_t>(bucket_index)];
  const std::int64_t n = bucket.short_side(), m = bucket.long_side();
  ProductItem item;
  item.bucket = bucket_index;
  for (ProductTile& tile : item.tiles) tile = {in_bucket, batch.members[member], 0};
  const bool bytes = batch.program.dtype == NsDType::fp8;  // all operands lie along K
  const int per_load = bytes ? kTileDepthE4m3 : kTileDepth;
  int rows = ceil_div(n, kTileSide), cols = rows;
  if (kind == kApplyList) {
    rows = ceil_div(bucket.rows, kTileSide);
    cols = ceil_div(bucket.cols, kTileSide);
    item.depth = ceil_div(n, per_load);
    item.order = bucket.tall() ? OperandOrder::k_k : OperandOrder::k_n;
  } else {
    item.depth = ceil_div(kind == kGramList ? m : n, per_load);
    const bool across = kind == kGramList && bucket.tall() && !bytes;
    item.order = across ? OperandOrder::m_n : OperandOrder::k_k;
    item.mirror = symmetric ? 1 : 0;
  }
  if (item.mirror != 0) return items.append_symmetric(item, rows);
  item.partial = batch.tiles.empty() ? 0 : batch.tiles[member].first;
  for (int row = 0; row < rows; row += 2) {
    for (int col = 0; col < cols; ++col, item.partial += kClusterSize) {
      items.pair(item, col, row, row + 1);
    }
  }
}

std::vector<ProductItem> items_of(const Batch& batch, List kind, bool symmetric) {
  // Deep and large first: the clusters then finish together.
  std::vector<std::size_t> order(batch.members.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto cost = [&](std::size_t member) {
    const Bucket& bucket = batch.buckets[static_cast<std::size_t>(batch.position[member].first)];
    const std::int64_t depth = kind == kGramList ? bucket.long_side() : bucket.short_side();
    return std::pair(depth, bucket.rows * bucket.cols);
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return cost(a) > cost(b); });
  Items items;
  for (const std::size_t member : order) append_items(batch, member, kind, symmetric, items);
  return std::move(items.all);
}

// Deals items, in order, each to the cluster that can begin it first. Times in loads along K.
class Dealer {
 public:
  explicit Dealer(int clusters) : dealt_(static_cast<std::size_t>(clusters)) {
    for (int c = 0; c < clusters; ++c) free_.emplace(0, c);
  }

  // A phase begins with a matrix when the phase before has written all tiles of it.
  void deal(const std::vector<ProductItem>& items) {
    std::map<int, std::int64_t> complete;
    for (const ProductItem& item : items) {
      const auto [time, cluster] = free_.top();
      free_.pop();
      std::int64_t begin = time;
      for (const ProductTile& tile : item.tiles) begin = std::max(begin, complete_[tile.matrix]);
      const std::int64_t end = begin + item.depth + kEpilogueCost;
      dealt_[static_cast<std::size_t>(cluster)].push_back(item);
      free_.emplace(end, cluster);
      for (const ProductTile& tile : item.tiles) {
        complete[tile.matrix] = std::max(complete[tile.matrix], end);
      }
    }
    complete_ = std::move(complete);
  }

  WorkList list() const {
    WorkList list;
    for (const std::vector<ProductItem>& own : dealt_) {
      list.lists.push_back(static_cast<int>(list.items.size()));
      list.items.insert(list.items.end(), own.begin(), own.end());
    }
    list.lists.push_back(static_cast<int>(list.items.size()));
    return list;
  }

 private:
  using Free = std::pair<std::int64_t, int>;  // when, who
  std::priority_queue<Free, std::vector<Free>, std::greater<>> free_;
  std::vector<std::vector<ProductItem>> dealt_;
  std::map<int, std::int64_t> complete_;  // of each matrix: the phase before
};

}  // namespace

WorkList make_list(const Batch& batch, const std::vector<List>& phases,
                   const PlanOptions& options) {
  std::vector<std::vector<ProductItem>> items;
  std::size_t most = 1;
  for (const List phase : phases) {
    items.push_back(items_of(batch, phase, options.symmetric));
    most = std::max(most, items.back().size());
  }
  Dealer dealer(static_cast<int>(std::min(most, static_cast<std::size_t>(options.clusters))));
  std::map<int, int> tiles;  // of each matrix: in the phase before
  for (std::size_t p = 0; p < items.size(); ++p) {
    std::map<int, int> own;
    for (ProductItem& item : items[p]) {
      item.phase = static_cast<int>(p);
      // Two matrices of an item have the same shape, so as many tiles.
      item.need = tiles[item.tiles[0].matrix];
      for (const ProductTile& tile : item.tiles) own[tile.matrix] += tile.row == kNoTile ? 0 : 1;
    }
    dealer.deal(items[p]);
    tiles = std::move(own);
  }
  return dealer.list();
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
