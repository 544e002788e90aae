// SPDX-License-Identifier: Apache-2.0
// Per-block splits of fused matrices: q/k/v, heads.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace rode {

// "PATTERN=COUNT" (equal parts) or "PATTERN=a+b+c" (sizes along fan-out), with commas
// between entries. The first pattern that matches a name applies.
class Splits {
 public:
  Splits() = default;
  // Throws Error{invalid_argument} under `optimizer`.
  Splits(std::string_view optimizer, std::string_view text);

  // Sizes along fan-out; one block if nothing matches. Throws if they do not fit.
  std::vector<std::int64_t> blocks(std::string_view name, std::int64_t fan_out) const;
  // The first pattern that matches none of these names; empty if all do.
  std::string unmatched(const std::vector<std::string>& names) const;

 private:
  struct Entry {
    std::string pattern;
    std::vector<std::int64_t> sizes;  // one number: a count
  };
  std::string optimizer_;
  std::vector<Entry> entries_;
};

}  // namespace rode
