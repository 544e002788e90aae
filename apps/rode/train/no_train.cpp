// SPDX-License-Identifier: Apache-2.0
// Training in builds without LibTorch or without the lab.
#include "commands.h"
#include "train/absent_command.h"

namespace rode::cli {
namespace {

constexpr const char* kRemedy =
    "this build cannot train; install PyTorch or LibTorch and the lab's packages "
    "(libtomlplusplus-dev, libjpeg-dev), configure with RODE_WITH_TORCH=ON and RODE_WITH_LAB=ON "
    "and build again";

}  // namespace

void add_bench_systems_command(CLI::App& bench) {
  add_absent_command(bench, "systems",
                     "Measure the paper's compute and memory table (not in this build)", kRemedy);
}

void add_train_command(CLI::App& app) {
  add_absent_command(app, "train", "Train a task's model with one optimizer (not in this build)",
                     kRemedy);
}

void add_compare_command(CLI::App& app) {
  add_absent_command(app, "compare", "Train with several optimizers and report (not in this build)",
                     kRemedy);
}

}  // namespace rode::cli
