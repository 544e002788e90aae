// SPDX-License-Identifier: Apache-2.0
// Products of bf16 matrices with fp32 sums, by oneDNN where the CPU has the instructions.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>

namespace rode::cpu {

// C (m x n, fp32) = op(A) op(B), all row-major; `trans` reads an operand transposed.
struct Bf16Product {
  std::int64_t m = 0, n = 0, k = 0;
  bool trans_a = false, trans_b = false;
  std::int64_t lda = 0, ldb = 0, ldc = 0;
  auto operator<=>(const Bf16Product&) const = default;
};

// False in a build without oneDNN and on a CPU without bf16 dot products, where oneDNN
// would emulate them more slowly than fp32 runs.
bool bf16_products_available();

// Generates the code for one product, once per process, and returns the bytes of scratch
// that multiply() needs. For planning: it takes a millisecond and allocates.
std::size_t prepare_product(const Bf16Product& product);

// On the calling thread alone. `scratch` is aligned to 64 bytes. oneDNN itself allocates a
// few handles a call; nothing here grows with the matrices.
void multiply(const Bf16Product& product, const std::uint16_t* a, const std::uint16_t* b, float* c,
              void* scratch);

// A product in blocks of its result, numbered as tasks. Upper: only the blocks on and above
// the diagonal.
struct Bf16Blocks {
  Bf16Product whole;
  std::int64_t height = 0, width = 0;  // of a block
  bool upper = false;

  struct Part {
    std::int64_t i, height, j, width;
  };
  std::int64_t tasks() const;
  Part part(std::int64_t task) const;

  std::size_t prepare() const;  // bytes of scratch that a task needs
  void run(const Part& part, const std::uint16_t* a, const std::uint16_t* b, float* c,
           void* scratch) const;
};

}  // namespace rode::cpu
