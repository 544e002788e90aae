// SPDX-License-Identifier: Apache-2.0
// Finds the nearest spelling by Levenshtein's distance.
#include "core/nearest.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace rode {
namespace {

// Levenshtein's distance, one row at a time.
std::size_t edits(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0]++;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replace = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({row[j] + 1, row[j + 1] + 1, replace});
    }
  }
  return row.back();
}

}  // namespace

std::string nearest(std::string_view text, std::span<const std::string> candidates,
                    std::size_t most) {
  std::string best;
  std::size_t fewest = most + 1;
  for (const std::string& candidate : candidates) {
    const std::size_t count = edits(text, candidate);
    if (count < fewest) {
      fewest = count;
      best = candidate;
    }
  }
  return best;
}

}  // namespace rode
