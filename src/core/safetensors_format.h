// SPDX-License-Identifier: Apache-2.0
// What the safetensors reader and writer must agree on: limits, names and size arithmetic.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "rode/dtype.h"

namespace rode::safetensors {

// Layout of a file: 8 bytes header length (little endian), the JSON header, the data.
static_assert(std::endian::native == std::endian::little, "tensors are stored little endian");
static_assert(sizeof(std::size_t) == 8, "offsets are 64 bits");

inline constexpr std::string_view kOperation = "safetensors";
inline constexpr std::string_view kMetadataKey = "__metadata__";
// Metadata key of the file's checksum (core/checksum.h). The first entry in files we write.
inline constexpr std::string_view kChecksumKey = "rode.checksum";
inline constexpr std::size_t kLengthBytes = 8;
inline constexpr std::size_t kAlignment = 8;  // of the start of the data, in files we write
// The limit of the format's own implementation: it bounds what a hostile length makes us read.
inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;

// Bytes of a tensor; empty if the number of elements or of bytes exceeds 63 bits.
// The product runs in the order of Shape::numel, which therefore cannot throw afterwards.
inline std::optional<std::uint64_t> checked_bytes(std::span<const std::int64_t> dims, DType dtype) {
  std::int64_t count = 1;
  for (const std::int64_t d : dims) {
    if (__builtin_mul_overflow(count, d, &count)) return std::nullopt;
  }
  if (__builtin_mul_overflow(count, static_cast<std::int64_t>(size_of(dtype)), &count)) {
    return std::nullopt;
  }
  return static_cast<std::uint64_t>(count);
}

}  // namespace rode::safetensors
