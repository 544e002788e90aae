// SPDX-License-Identifier: Apache-2.0
// --products: which kernels multiply on CUDA.
#pragma once

#include <string>

#include <CLI/CLI.hpp>

#include "rode/optim/common.h"

namespace rode::cli {

inline void add_products_option(CLI::App& command, std::string& products) {
  command
      .add_option("--products", products,
                  "CUDA: kernels for half-precision products; tensor-cores: those that run on "
                  "every GPU from compute capability 8.0 on; auto: the fastest for this GPU")
      ->check(CLI::IsMember({"auto", "tensor-cores", "plain"}))
      ->capture_default_str();
}

inline CudaProducts cuda_products_of(const std::string& products) {
  if (products == "tensor-cores") return CudaProducts::tensor_cores;
  return products == "plain" ? CudaProducts::plain : CudaProducts::automatic;
}

}  // namespace rode::cli
