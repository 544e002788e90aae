// SPDX-License-Identifier: Apache-2.0
// Deals matrices by cost and the rest by bytes, and lays out each rank's message.
#include "rode/shard_plan.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <queue>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "core/checksum.h"
#include "rode/error.h"
#include "rules/cost.h"

namespace rode {
namespace {

// Pieces begin where any element type may.
constexpr std::int64_t kAlignment = 16;

std::int64_t aligned(std::int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

std::int64_t unit_count(const ShardItem& item) {
  if (item.unit_bytes == 0 || item.bytes == 0) return 1;
  return (item.bytes + item.unit_bytes - 1) / item.unit_bytes;
}

void check(std::span<const ShardItem> items, int ranks, const ShardPlanOptions& options) {
  const auto refuse = [](const std::string& text) {
    throw Error(ErrorKind::invalid_argument, "shard plan", text);
  };
  if (ranks < 1) refuse(fmt::format("ranks = {}; expected 1 or more", ranks));
  if (options.header_bytes < 0 || options.most_messages < 1 || options.short_message < 1) {
    refuse(
        fmt::format("header_bytes = {}, most_messages = {}, short_message = {}; expected 0, 1 "
                    "and 1 or more",
                    options.header_bytes, options.most_messages, options.short_message));
  }
  for (const ShardItem& item : items) {
    const bool sizes = item.bytes >= 0 && item.unit_bytes >= 0 && item.state_bytes >= 0;
    if (sizes && item.cost >= 0 && std::isfinite(item.cost)) continue;
    refuse(
        fmt::format("'{}' has {} bytes in units of {}, {} bytes of state, cost {}; expected 0 "
                    "or more of each",
                    item.name, item.bytes, item.unit_bytes, item.state_bytes, item.cost));
  }
}

class Dealer {
 public:
  Dealer(std::span<const ShardItem> items, int ranks)
      : items_(items), bytes_(static_cast<std::size_t>(ranks)) {}

  // Longest first, each to the rank with the least so far. Parts of one item are alike: which of
  // them a rank has is decided afterwards, so that they lie side by side.
  void deal_matrices() {
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < items_.size(); ++i) {
      if (items_[i].cost > 0) order.push_back(i);
    }
    const auto unit_cost = [&](std::size_t i) {
      return items_[i].cost / static_cast<double>(unit_count(items_[i]));
    };
    std::ranges::stable_sort(order, std::greater{}, unit_cost);
    using Place = std::tuple<double, std::int64_t, std::size_t>;  // cost, bytes, rank
    std::priority_queue<Place, std::vector<Place>, std::greater<>> least;
    for (std::size_t r = 0; r < bytes_.size(); ++r) least.emplace(0, 0, r);
    for (const std::size_t i : order) {
      const std::int64_t units = unit_count(items_[i]);
      std::vector<std::size_t> owners;
      for (std::int64_t u = 0; u < units; ++u) {
        const auto [cost, bytes, rank] = least.top();
        least.pop();
        least.emplace(cost + unit_cost(i), bytes + items_[i].bytes / units, rank);
        owners.push_back(rank);
      }
      std::ranges::sort(owners);
      std::int64_t first = 0;
      for (auto at = owners.begin(); at != owners.end();) {
        const auto next = std::upper_bound(at, owners.end(), *at);
        const std::int64_t last = first + (next - at);
        add(i, *at, begin_of(i, first), begin_of(i, last));
        first = last;
        at = next;
      }
    }
  }

  void deal_rest() {
    std::vector<std::size_t> whole, divisible;
    for (std::size_t i = 0; i < items_.size(); ++i) {
      if (items_[i].cost > 0) continue;
      (unit_count(items_[i]) == 1 ? whole : divisible).push_back(i);
    }
    const auto size = [&](std::size_t i) { return items_[i].bytes; };
    std::ranges::stable_sort(whole, std::greater{}, size);
    for (const std::size_t i : whole) {
      const auto least = std::ranges::min_element(bytes_);
      add(i, static_cast<std::size_t>(least - bytes_.begin()), 0, items_[i].bytes);
    }
    divide(divisible);
  }

  std::vector<ShardPiece> take_pieces() {
    std::ranges::stable_sort(
        pieces_, {}, [](const ShardPiece& p) { return std::tuple(p.rank, p.item, p.first); });
    return std::move(pieces_);
  }

 private:
  std::int64_t begin_of(std::size_t item, std::int64_t unit) const {
    const ShardItem& i = items_[item];
    return unit == unit_count(i) ? i.bytes : unit * i.unit_bytes;
  }

  void add(std::size_t item, std::size_t rank, std::int64_t first, std::int64_t last) {
    pieces_.push_back({item, static_cast<int>(rank), first, last - first, 0});
    bytes_[rank] += last - first;
  }

  // The items one after the other, cut where every rank has been filled up to the same level.
  void divide(const std::vector<std::size_t>& order) {
    std::int64_t total = 0;
    for (const std::size_t i : order) total += items_[i].bytes;
    const std::int64_t level = level_for(total);
    std::vector<std::int64_t> ends;  // of each rank's part, from the beginning of the first item
    std::int64_t end = 0;
    for (const std::int64_t bytes : bytes_) {
      end = std::min(total, end + std::max<std::int64_t>(0, level - bytes));
      ends.push_back(end);
    }
    std::int64_t start = 0;
    for (const std::size_t i : order) {
      std::int64_t first = 0;
      for (std::size_t r = 0; r < ends.size() && first < items_[i].bytes; ++r) {
        const std::int64_t last = nearest_unit(i, ends[r] - start);
        if (last <= first) continue;
        add(i, r, first, last);
        first = last;
      }
      start += items_[i].bytes;
    }
  }

  std::int64_t nearest_unit(std::size_t item, std::int64_t at) const {
    const ShardItem& i = items_[item];
    if (at <= 0) return 0;
    if (at >= i.bytes) return i.bytes;  // also where the last part is smaller
    return std::min(i.bytes, (at + i.unit_bytes / 2) / i.unit_bytes * i.unit_bytes);
  }

  // How far ranks must be filled up to hold `total` more; rounded up.
  std::int64_t level_for(std::int64_t total) const {
    std::vector<std::int64_t> sorted = bytes_;
    std::ranges::sort(sorted);
    std::int64_t below = 0;
    for (std::size_t n = 1; n <= sorted.size(); ++n) {
      below += sorted[n - 1];
      const auto count = static_cast<std::int64_t>(n);
      const std::int64_t level = (total + below + count - 1) / count;
      if (n == sorted.size() || level <= sorted[n]) return level;
    }
    return 0;
  }

  std::span<const ShardItem> items_;
  std::vector<std::int64_t> bytes_;
  std::vector<ShardPiece> pieces_;
};

// Everything that ranks must agree on, in one text.
std::uint64_t hash_of(std::span<const ShardItem> items, const ShardPlan& plan) {
  std::string text = fmt::format("rode shard plan 1\n{}\n", plan.ranks());
  for (const ShardItem& i : items) {
    text += fmt::format("{} {} {} {:a} {}\n", i.name, i.bytes, i.unit_bytes, i.cost, i.state_bytes);
  }
  for (const ShardPiece& p : plan.pieces) {
    text += fmt::format("{} {} {} {} {}\n", p.item, p.rank, p.first, p.bytes, p.offset);
  }
  for (const std::int64_t cut : plan.cuts) text += fmt::format("{}\n", cut);
  return hash64(std::as_bytes(std::span(text)));
}

// In equal parts, each a multiple of the alignment except the last.
std::vector<std::int64_t> cuts_of(std::int64_t bytes, const ShardPlanOptions& options) {
  const std::int64_t wanted = (bytes + options.short_message - 1) / options.short_message;
  const auto count = std::clamp<std::int64_t>(wanted, 1, options.most_messages);
  const std::int64_t part = aligned((bytes + count - 1) / count);
  std::vector<std::int64_t> cuts;
  for (std::int64_t end = part; end < bytes; end += part) cuts.push_back(end);
  cuts.push_back(bytes);
  return cuts;
}

}  // namespace

double newton_schulz_cost(std::int64_t m, std::int64_t n, int iterations) {
  return rules::newton_schulz_flops(m, n, iterations).symmetric;
}

double ShardPlan::cost_ratio() const {
  double most = 0, sum = 0;
  for (const ShardLoad& load : loads) {
    most = std::max(most, load.cost);
    sum += load.cost;
  }
  return sum > 0 ? most * static_cast<double>(loads.size()) / sum : 1;
}

ShardPlan plan_shards(std::span<const ShardItem> items, int ranks,
                      const ShardPlanOptions& options) {
  check(items, ranks, options);
  Dealer dealer(items, ranks);
  dealer.deal_matrices();
  dealer.deal_rest();
  ShardPlan plan;
  plan.pieces = dealer.take_pieces();
  plan.loads.resize(static_cast<std::size_t>(ranks));
  std::vector<std::int64_t> ends(plan.loads.size(), options.header_bytes);
  for (ShardPiece& piece : plan.pieces) {
    const auto rank = static_cast<std::size_t>(piece.rank);
    const ShardItem& item = items[piece.item];
    piece.offset = aligned(ends[rank]);
    ends[rank] = piece.offset + piece.bytes;
    const double share =
        item.bytes > 0 ? static_cast<double>(piece.bytes) / static_cast<double>(item.bytes) : 1;
    plan.loads[rank].cost += item.cost * share;
    plan.loads[rank].bytes += piece.bytes;
    plan.loads[rank].state_bytes += std::llround(static_cast<double>(item.state_bytes) * share);
  }
  plan.message_bytes = aligned(std::ranges::max(ends));
  plan.cuts = cuts_of(plan.message_bytes, options);
  plan.hash = hash_of(items, plan);
  return plan;
}

}  // namespace rode
