// SPDX-License-Identifier: Apache-2.0
// Element types. The engine computes with f32 and bf16; the others occur in files.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace rode {

enum class DType { f64, f32, f16, bf16, i64, i32, i16, i8, u64, u32, u16, u8, boolean };

// Bytes of one element.
std::size_t size_of(DType dtype);

// As safetensors spells them: "F32", "BF16", "I64", ...
std::string_view to_string(DType dtype);
std::optional<DType> dtype_from_string(std::string_view text);

}  // namespace rode
