// SPDX-License-Identifier: Apache-2.0
// Sizes and spellings of the element types.
#include "rode/dtype.h"

#include <array>

namespace rode {
namespace {

struct Entry {
  std::string_view text;
  std::size_t size;
};

// In the order of the enumerators.
constexpr std::array<Entry, 13> kEntries{{
    {"F64", 8},
    {"F32", 4},
    {"F16", 2},
    {"BF16", 2},
    {"I64", 8},
    {"I32", 4},
    {"I16", 2},
    {"I8", 1},
    {"U64", 8},
    {"U32", 4},
    {"U16", 2},
    {"U8", 1},
    {"BOOL", 1},
}};

const Entry& entry(DType dtype) { return kEntries[static_cast<std::size_t>(dtype)]; }

}  // namespace

std::size_t size_of(DType dtype) { return entry(dtype).size; }

std::string_view to_string(DType dtype) { return entry(dtype).text; }

std::optional<DType> dtype_from_string(std::string_view text) {
  for (std::size_t i = 0; i < kEntries.size(); ++i) {
    if (kEntries[i].text == text) return static_cast<DType>(i);
  }
  return std::nullopt;
}

}  // namespace rode
