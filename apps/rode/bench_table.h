// SPDX-License-Identifier: Apache-2.0
// `rode bench step --backend cuda`: one step, or the table of targets, beside the machine's
// ceilings.
#pragma once

#include "bench_common.h"

namespace rode::cli {

void run_cuda_bench(const BenchArguments& arguments);

}  // namespace rode::cli
