// SPDX-License-Identifier: Apache-2.0
// SOAP's change of a mode's basis, in planned workspace.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rode::host {

// Floats that next_basis() needs at `workspace`, which is aligned to 8 bytes.
std::size_t next_basis_floats(std::int64_t n);

// Q <- qr(L Q) with the columns of Q in the order of diag(Q^T L Q), the largest first. All arrays
// are n x n and row-major; `product` is L Q, `next` receives the new basis and may be `basis`,
// order[j] the old place of its column j. False if LAPACK fails.
bool next_basis(const float* basis, const float* product, std::int64_t n, float* next,
                std::int32_t* order, float* workspace);

}  // namespace rode::host
