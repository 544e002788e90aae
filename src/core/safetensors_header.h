// SPDX-License-Identifier: Apache-2.0
// The JSON header of a safetensors file, checked entry by entry.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "rode/tensor_view.h"

namespace rode::safetensors {

struct Record {
  DType dtype = DType::f32;
  Shape shape;
  std::uint64_t begin = 0;  // bytes from the beginning of the data
  std::uint64_t end = 0;
};

struct Header {
  std::map<std::string, Record, std::less<>> records;
  std::map<std::string, std::string> metadata;
};

// Every record of the result lies inside the `data_bytes` of data and has the bytes of its shape
// and dtype; the caller must check that records leave no holes and do not overlap. Throws
// Error (kind file); `source` is the file's name in the message.
Header parse_header(std::string_view json, std::uint64_t data_bytes, std::string_view source);

}  // namespace rode::safetensors
