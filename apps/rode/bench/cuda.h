// SPDX-License-Identifier: Apache-2.0
// Timed on a CUDA device: whole steps, and the limits of the machine.
//
// cuda.cpp implements it; in a program built without CUDA, no_cuda.cpp throws.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "bench/common.h"

namespace rode::cli {

struct CudaMachine {
  std::string device;
  std::string capability;  // "9.0"
  std::string driver;      // "580.82.07", or the CUDA version it supports if that is unknown
  std::string runtime;     // CUDA version of this program, "13.0"
  std::size_t memory_bytes = 0;
};

// Throws `unsupported` where there is no CUDA in this program or no device in this machine.
CudaMachine describe_cuda_machine();

// The limits of any step.
struct CudaCeilings {
  double copy_tbps = 0;                 // device to device, bytes read and written
  std::optional<double> matmul_tflops;  // bf16, 8192^3, by cuBLAS; none where that is absent
};

CudaCeilings measure_cuda_ceilings();

struct CudaSteps {
  Times step;
  double mean_ms = 0;  // the whole run over its steps
  int sets = 0;        // of weights, gradients and state, stepped in turn
  std::size_t state_bytes = 0;
  std::size_t workspace_bytes = 0;
};

// Steps are enqueued back to back, each set of tensors in its turn; a step's time is that
// from the end of the step before to its own end, by events on the stream.
CudaSteps time_cuda_steps(const BenchArguments& arguments, const Model& model,
                          const Method& method);

}  // namespace rode::cli
