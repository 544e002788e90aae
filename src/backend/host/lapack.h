// SPDX-License-Identifier: Apache-2.0
// The two factorizations of SOAP, by LAPACK, in planned workspace.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rode::host {

// Floats that the functions below need at `workspace`, which is aligned to 8 bytes.
// Throws `unsupported` where n exceeds what LAPACK's integers count.
std::size_t eigen_workspace_floats(std::int64_t n);
std::size_t qr_workspace_floats(std::int64_t n);

// The columns of the row-major `basis` become the eigenvectors of `symmetric` (row-major,
// n x n), the largest eigenvalue first. In double: fp32 would mix neighbours. False, with
// `basis` untouched, where the iteration does not converge.
bool eigenvectors(const float* symmetric, std::int64_t n, float* basis, float* workspace);

// Replaces n x n column-major columns by the Q of their QR factorization; false if it fails.
bool orthonormalize(float* columns, std::int64_t n, float* workspace);

}  // namespace rode::host
