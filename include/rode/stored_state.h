// SPDX-License-Identifier: Apache-2.0
// Parameter-sized state between the storages that `state_dtype` names.
#pragma once

#include <string>
#include <string_view>

#include "rode/tensor_view.h"

namespace rode {

// The key of the scales that belong to int8 state: "momentum_scale".
std::string scale_key(std::string_view key);

// Whether state of this type can be converted: F32, BF16 or I8.
bool is_stored_state(DType dtype);

// One state tensor in host memory. I8 has scales: F32, one row of them per row of the stored matrix
// and one scale per 256 elements of it. Otherwise they are absent (data is null).
struct ConstStoredState {
  ConstTensorView values, scales;
};
struct StoredState {
  TensorView values, scales;
};

// Writes `from` in the storage of `to`, rounded to nearest. Scales beside values that are not I8
// say how the values were stored before: they are used again if all values are their multiples, so
// that the integers come back bit for bit. Throws Error{state_mismatch} in the name of `name` if
// shapes, types or scales do not fit, or if I8 is asked for and a value is not finite.
void convert_state(std::string_view name, const ConstStoredState& from, const StoredState& to);

// The check alone, from shapes and types.
void check_convertible(std::string_view name, const ConstStoredState& from, const StoredState& to);

}  // namespace rode
