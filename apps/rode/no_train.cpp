// SPDX-License-Identifier: Apache-2.0
// Training in builds without LibTorch or without the lab: an error that names the remedy.
#include "commands.h"
#include "rode/error.h"

namespace rode::cli {
namespace {

void add_absent(CLI::App& app, const char* name, const char* help) {
  CLI::App* command = app.add_subcommand(name, help);
  command->allow_extras();
  command->callback([] {
    throw Error(ErrorKind::unsupported, "lab",
                "this build cannot train; install PyTorch or LibTorch and the lab's packages "
                "(libtomlplusplus-dev, libjpeg-dev), configure with RODE_WITH_TORCH=ON and "
                "RODE_WITH_LAB=ON and build again");
  });
}

}  // namespace

void add_train_command(CLI::App& app) {
  add_absent(app, "train", "Train a task's model with one optimizer (not in this build)");
}

void add_compare_command(CLI::App& app) {
  add_absent(app, "compare", "Train with several optimizers and report (not in this build)");
}

}  // namespace rode::cli
