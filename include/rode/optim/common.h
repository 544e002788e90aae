// SPDX-License-Identifier: Apache-2.0
// Options that several optimizers share.
#pragma once

#include <array>
#include <cstdint>

namespace rode {

// Newton-Schulz polynomial coefficients: x <- a x + b x^3 + c x^5 on singular values.
enum class Coefficients {
  jordan,         // (3.4445, -4.7750, 2.0315) every step: the paper's
  polar_express,  // five triples that converge, start divided by 1.02
  you,            // five triples tuned jointly
  four,           // four triples, start divided by its Schatten-4 norm too; ns_steps is then 4
};

// Operand type of the Newton-Schulz products; accumulation is always fp32.
enum class NsDType { automatic, fp32, bf16, fp16, fp8 };

// standard: X <- X p(X^T X). gram: iterate on the small Gram matrix and apply the product once per
// restart; algebraically equal, fewer FLOPs if rows > columns.
enum class NsForm { automatic, standard, gram };

// Rows of the orthogonalised matrix, those of the fan-out: as they are, or each divided by its root
// mean square, averaged over steps (NorMuon).
enum class Normalize { none, rows };

// Writing bf16 weights back.
enum class Rounding {
  nearest,
  stochastic,  // unbiased, reproducible from `seed`
  exact,       // fp32 kept as bf16 plus 16 low bits: 2 more bytes per parameter
};

// Parameter-sized state. int8: the momentum, or AdamW's first moment, in 8 bits with one fp32 scale
// per block of 256 elements along a row of the stored matrix; further moments stay fp32.
enum class StateDType { fp32, bf16, int8 };

// Writing int8 state.
enum class StateRounding {
  nearest,
  stochastic,  // unbiased, reproducible from `seed`
};

struct StorageOptions {
  Rounding rounding = Rounding::stochastic;  // bf16 parameters only
  StateDType state_dtype = StateDType::fp32;
  StateRounding state_rounding = StateRounding::nearest;  // int8 state only
  std::uint64_t seed = 0;                                 // of stochastic rounding

  bool operator==(const StorageOptions&) const = default;
};

using Betas = std::array<double, 2>;

// Which kernels multiply in half precision on CUDA.
enum class CudaProducts {
  automatic,     // the fastest that the chip has
  tensor_cores,  // those of every chip from compute capability 8.0 on, on Hopper too
  plain,         // without tensor cores: any chip
};

}  // namespace rode
