// SPDX-License-Identifier: Apache-2.0
// A task: model, data, protocol and every optimizer's rates, as task/tasks/*.toml hold them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "lab/task/sweep.h"
#include "rode/method.h"
#include "rode/routing.h"

namespace rode::lab {

// Fields of 0 do not apply to the kind.
struct ModelSpec {
  std::string kind;  // gpt2, qwen2, resnet50, small-resnet
  std::int64_t layers = 0;
  std::int64_t width = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;   // qwen2: fewer than heads is grouped-query attention
  std::int64_t mlp_width = 0;  // 0 for gpt2: four times the width
  std::int64_t vocab_size = 0;
  bool vocab_from_data = false;  // tokens: the size that tokens.json names takes its place
  std::int64_t positions = 0;    // gpt2: learned ones
  bool tied = true;              // embedding and head are one
  double rope_base = 10000;
  double norm_eps = 1e-6;
  double init_deviation = 0.02;
  double dropout = 0;
  std::int64_t classes = 0;  // vision
};

struct DataSpec {
  std::string kind;           // tokens, tiny-lm, cifar-100, image-folder, tiny-vision
  std::string path;           // below the data folder; empty for the synthetic ones
  std::string valid_path;     // of the validation split where it is another folder
  std::int64_t sequence = 0;  // tokens per sequence
  // Of the validation split, 0: all; the first sequences, or images spread over it.
  std::int64_t eval_samples = 0;
  std::string train = "train";  // splits, or folders of images
  std::string valid = "valid";
  // Synthetic: how many there are; images: how many of the training split, spread over it, 0: all.
  std::int64_t train_samples = 0;
  std::int64_t classes = 0;  // image-folder: number of classes, from the first on; 0: all
  std::int64_t image_size = 224;
  std::int64_t eval_resize = 224;
  bool augment = true;
  double area_min = 0.08;  // of a random part
};

struct TrainSpec {
  std::int64_t steps = 0;  // one of steps and epochs is 0
  std::int64_t epochs = 0;
  std::int64_t batch = 0;           // samples per step, over all ranks and accumulated parts
  std::int64_t accumulate = 1;      // parts of a batch; divides it
  std::int64_t warmup = 0;          // steps
  std::string schedule = "cosine";  // cosine, wsd, cosine-epoch, constant
  // wsd: the share of the steps that cools down, and how; the exponent of "power".
  double cooldown = 0.2;
  std::string cooldown_form = "linear";  // linear, sqrt, power
  double cooldown_power = 2;
  // The optimizer's momentum begins here and reaches its own value after this many steps; 0: none.
  std::int64_t momentum_warmup = 0;
  double momentum_start = 0.85;
  double average_tail = 0;               // share of the steps whose weights are averaged; 0: none
  std::int64_t eval_interval = 0;        // in steps, or in epochs where epochs are given
  std::int64_t checkpoint_interval = 0;  // the same; 0: with every evaluation
  std::string precision = "fp32";        // of the products: fp32, bf16 (autocast)
  std::string parameters = "fp32";       // as they are stored: fp32, bf16
  bool checkpoint_activations = false;
  double clip = 0;  // largest gradient norm; 0: none
  Route route = Route::language;

  bool has_warmup() const { return schedule == "cosine" || schedule == "wsd"; }
};

struct OptimizerSpec {
  std::string name;       // as compared: "rode-published"
  std::string optimizer;  // of the engine: "rode"
  Settings settings;      // its own, then those of the file's constants
  std::string source;     // where the rates come from
};

// A scale of a task: values that replace its own ("model.layers").
struct ScaleSpec {
  std::string name;  // "tiny"
  Settings settings;
};

struct Task {
  std::string name;
  std::string title;
  std::string source;  // file it came from
  ModelSpec model;
  DataSpec data;
  TrainSpec train;
  std::vector<OptimizerSpec> optimizers;  // in the order of the file
  std::vector<ScaleSpec> scales;          // likewise; none where one was applied
  std::string scale;                      // the one that was applied
  SweepSpec sweep = {};

  bool is_language() const { return data.kind == "tokens" || data.kind == "tiny-lm"; }
  // Throws for a name that the task has no rates for, naming the nearest.
  const OptimizerSpec& optimizer(std::string_view name) const;
};

// Every key is checked: an unknown one, a wrong type or value is an error with file, line, key
// and the nearest valid key. Optimizers' options are checked by the engine.
Task parse_task(std::string_view text, std::string_view name, std::string_view source);

// Names of the tasks that are part of the build.
std::vector<std::string> task_names();
// One of them by name, or a file by a path (with '/' or ending in .toml).
Task load_task(const std::string& name_or_path);

// Whether a key of `--set` names a value of a task ("train.batch") and not an optimizer's option.
bool is_task_key(std::string_view key);
// The task with these values of [model], [data] and [train] replaced, checked as a file would be.
Task with_settings(const Task& task, const Settings& settings);

// The task at one of its scales; empty: as it is. A scale that it does not have is an error.
Task with_scale(const Task& task, const std::string& scale);
// The task as a command line wants it: at a scale, then with values of `--set`.
Task load_task(const std::string& name_or_path, const std::string& scale, const Settings& settings);

nlohmann::ordered_json to_json(const Task& task);
// A task file with every value written out, which parse_task reads as the same task.
std::string to_toml(const Task& task);

}  // namespace rode::lab
