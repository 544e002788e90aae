// SPDX-License-Identifier: Apache-2.0
// The matrices a tensor stands for: flattened to two dimensions, turned to
// fan-out x fan-in, and cut along fan-out.
#pragma once

#include <cstddef>
#include <vector>

#include "reference/matrix.h"
#include "reference/reference.h"

namespace rode::reference {

// Rank 2 and more; (d0, d1, d2, ...) is read as d0 x (d1 d2 ...).
std::vector<Matrix> split(const Tensor& tensor, const Treatment& treatment);

// The inverse of split: writes the blocks back where they came from.
void join(const std::vector<Matrix>& blocks, const Treatment& treatment, Tensor& tensor);

// A tensor of zeros in the same shape.
Tensor zeros_like(const Tensor& tensor);

// One value per block, as the scalar states are stored.
Tensor per_block(const std::vector<double>& values);

// One value per row of the fan-out, zero.
Tensor per_row(const std::vector<Matrix>& blocks);

// The one element of a scalar state such as "step".
double& scalar(State& state, const char* key);

Tensor& entry(State& state, const char* key, std::size_t elements);

}  // namespace rode::reference
