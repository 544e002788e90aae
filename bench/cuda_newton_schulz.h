// SPDX-License-Identifier: Apache-2.0
// What the benchmark and the check of Newton-Schulz on CUDA share: matrices in half precision.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "backend/cuda/newton_schulz/newton_schulz.h"

namespace rode::bench {

// Gaussian, of norm 1.
std::vector<float> unit_matrix(std::int64_t rows, std::int64_t cols);

// A slot's matrices from and to fp32 on the host.
void put(void* at, const cuda::NsSlot& slot, std::int64_t rows, std::int64_t cols,
         const float* values);
std::vector<float> get(const void* at, const cuda::NsSlot& slot, std::int64_t rows,
                       std::int64_t cols);

// U's slot: fp16 where the rest is bf16.
cuda::NsSlot of_direction(cuda::NsSlot slot);

// Every start has the norm it should have.
void all_ones(const cuda::NewtonSchulz& ns, std::size_t count);

// Prints what disagrees with fp32, or is not repeatable, and a few of the others; 0: nothing did.
using Shapes = std::vector<std::pair<std::int64_t, std::int64_t>>;
int check(const Shapes& shapes, CudaProducts products);
// The same for e4m3 products by spectrum of the start, guarded, in five and in four iterations.
int check_spectra(const Shapes& shapes);
const char* name_of(NsDType dtype);

}  // namespace rode::bench
