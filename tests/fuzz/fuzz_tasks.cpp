// SPDX-License-Identifier: Apache-2.0
// Fuzzes task files and dataset manifests: any text gives a task that prints as a file of the
// same task, or an Error.
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "fuzz/fuzz_target.h"
#include "fuzz/require.h"
#include "lab/base/embedded.h"
#include "lab/base/name.h"
#include "lab/fetch/dataset.h"
#include "lab/task/model_size.h"
#include "lab/task/task.h"

namespace {

namespace lab = rode::lab;
using fuzz::require;
using fuzz::succeeds;

void check_task(std::string_view text) {
  lab::Task task;
  if (!succeeds([&] { task = lab::parse_task(text, "t", "fuzz"); })) return;
  const std::int64_t size = lab::parameter_count(task.model);
  require(size > 0 && size <= lab::kMaxParameters, "a model of no size, or of too much");
  for (const lab::OptimizerSpec& spec : task.optimizers) {
    require(lab::is_name(spec.name), "a name that is none");
  }
  const std::string printed = lab::to_toml(task);
  const bool read = succeeds([&] {
    require(lab::to_json(lab::parse_task(printed, "t", "fuzz")) == lab::to_json(task),
            "a task changes by its own text");
  });
  require(read, "a task is refused as it was printed");
}

void check_manifest(std::string_view text) {
  succeeds([&] {
    for (const auto& [name, dataset] : lab::parse_manifest(text, "fuzz")) {
      require(lab::is_name(name), "a dataset's name that is none");
      for (const lab::DatasetFile& file : dataset.files) {
        require(lab::is_name(file.name), "a file's name that is none");
        for (const auto& [from, to] : file.unpack) require(lab::is_name(to), "a path");
      }
    }
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size > 8192) return 0;  // longer ones only cost time
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  check_task(text);
  check_manifest(text);
  return 0;
}

std::vector<std::string> fuzz_seeds() {
  std::vector<std::string> seeds;
  for (const lab::EmbeddedFile& file : lab::embedded_files()) seeds.emplace_back(file.text);
  seeds.emplace_back(R"(title = "T"
[model]
kind = "gpt2"
layers = 1
width = 8
heads = 2
vocab_size = 257
positions = 16
[data]
kind = "tokens"
path = "a/b"
sequence = 16
[train]
steps = 10
batch = 4
eval_interval = 5
routing = "language"
[optimizers.adamw]
lr = 1e-3
betas = [0.9, 0.95]
source = "x"
)");
  return seeds;
}
