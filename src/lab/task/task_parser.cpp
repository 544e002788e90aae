// SPDX-License-Identifier: Apache-2.0
// Task files: TOML to the typed task.
#include <algorithm>

#include <fmt/format.h>

#include "core/file_io.h"
#include "lab/base/name.h"
#include "lab/base/toml_table.h"
#include "lab/task/constants.h"
#include "lab/task/model_size.h"
#include "lab/task/task.h"
#include "lab/task/task_reader.h"
#include "lab/text/token_shard.h"
#include "rode/error.h"

namespace rode::lab {
namespace {

// Largest values, far beyond what anyone trains: sums and products of them stay within int64.
constexpr std::int64_t kMaxLayers = 1000;
constexpr std::int64_t kMaxWidth = 1 << 17;
constexpr std::int64_t kMaxMlpWidth = 1 << 20;
constexpr std::int64_t kMaxHeads = 1 << 14;
constexpr std::int64_t kMaxPositions = 1 << 20;
constexpr std::int64_t kMaxClasses = 1'000'000;
constexpr std::int64_t kMaxBatch = 1 << 20;
constexpr std::int64_t kMaxStepTokens = std::int64_t{1} << 32;
constexpr std::int64_t kMaxStepPixels = std::int64_t{1} << 36;
constexpr std::int64_t kMaxSamples = 1'000'000'000'000;
constexpr std::int64_t kMaxSteps = 1'000'000'000;
constexpr std::int64_t kMaxEpochs = 1'000'000;

template <class T>
void assign(T& field, const std::optional<T>& value) {
  if (value) field = *value;
}

ModelSpec parse_model(TomlTable& table) {
  ModelSpec model;
  model.kind =
      table.required("kind", table.word("kind", {"gpt2", "qwen2", "resnet50", "small-resnet"}));
  const bool language = model.kind == "gpt2" || model.kind == "qwen2";
  if (language) {
    model.layers = table.required("layers", table.whole("layers", 1, kMaxLayers));
    model.width = table.required("width", table.whole("width", 1, kMaxWidth));
    model.heads = table.required("heads", table.whole("heads", 1, kMaxHeads));
    model.vocab_size = table.required("vocab_size", table.whole("vocab_size", 2, kMaxVocabSize));
    model.norm_eps = model.kind == "gpt2" ? 1e-5 : 1e-6;
    if (model.width % model.heads != 0) {
      table.fail("heads", fmt::format("is {}; expected a divisor of the width {}", model.heads,
                                      model.width));
    }
    assign(model.vocab_from_data, table.truth("vocab_from_data"));
    assign(model.tied, table.truth("tied"));
    assign(model.dropout, table.number("dropout", 0, 0.99));
    assign(model.norm_eps, table.number("norm_eps", 0, 1));
    assign(model.init_deviation, table.number("init_deviation", 0, 10));
  } else {
    model.classes = table.required("classes", table.whole("classes", 2, kMaxClasses));
  }
  if (model.kind == "gpt2") {
    model.mlp_width = 4 * model.width;
    assign(model.mlp_width, table.whole("mlp_width", 1, kMaxMlpWidth));
    model.positions = table.required("positions", table.whole("positions", 1, kMaxPositions));
    // Accepted, since `rode tasks` prints it, with the one value that GPT-2 has.
    model.kv_heads = model.heads;
    assign(model.kv_heads, table.whole("kv_heads", model.heads, model.heads));
  } else if (model.kind == "qwen2") {
    model.mlp_width = table.required("mlp_width", table.whole("mlp_width", 1, kMaxMlpWidth));
    model.kv_heads = table.required("kv_heads", table.whole("kv_heads", 1, kMaxHeads));
    if (model.heads % model.kv_heads != 0) {
      table.fail("kv_heads", fmt::format("is {}; expected a divisor of the {} heads",
                                         model.kv_heads, model.heads));
    }
    assign(model.rope_base, table.number("rope_base", 1, 1e12));
  } else if (model.kind == "small-resnet") {
    model.width = table.required("width", table.whole("width", 1, kMaxWidth));
    model.layers = table.required("layers", table.whole("layers", 3, kMaxLayers));
  }
  table.finish();
  if (const std::int64_t count = parameter_count(model); count > kMaxParameters) {
    table.fail("", fmt::format("[model] has {} parameters; expected at most {}; choose a smaller "
                               "width, mlp_width or number of layers",
                               count, kMaxParameters));
  }
  return model;
}

// Names with '/' between them: below the data folder, and not out of it.
std::string data_path(TomlTable& table, std::string_view key) {
  const std::string path = table.required(key, table.text(key));
  for (std::size_t at = 0; at <= path.size();) {
    const std::size_t end = std::min(path.find('/', at), path.size());
    if (!is_name(std::string_view(path).substr(at, end - at))) {
      table.fail(key, fmt::format("is '{}'; expected a folder below the data folder, each part "
                                  "{}; use --data or a link for folders elsewhere",
                                  printable(path), kNameRule));
    }
    at = end + 1;
  }
  return path;
}

DataSpec parse_data(TomlTable& table) {
  DataSpec data;
  data.kind = table.required("kind", table.word("kind", {"tokens", "tiny-lm", "cifar-100",
                                                         "image-folder", "tiny-vision"}));
  const bool synthetic = data.kind.starts_with("tiny-");
  if (synthetic) {
    data.train_samples =
        table.required("train_samples", table.whole("train_samples", 1, kMaxSamples));
    data.eval_samples = table.required("eval_samples", table.whole("eval_samples", 1, kMaxSamples));
  } else {
    data.path = data_path(table, "path");
    if (table.has("valid_path")) data.valid_path = data_path(table, "valid_path");
    assign(data.eval_samples, table.whole("eval_samples", 0, kMaxSamples));
    if (data.kind == "cifar-100") data.valid = "test";
    assign(data.train, table.name("train"));
    assign(data.valid, table.name("valid"));
  }
  if (data.kind == "tokens" || data.kind == "tiny-lm") {
    data.sequence = table.required("sequence", table.whole("sequence", 1, kMaxPositions));
  } else {
    if (!synthetic) assign(data.train_samples, table.whole("train_samples", 0, kMaxSamples));
    if (data.kind == "image-folder") assign(data.classes, table.whole("classes", 0, kMaxClasses));
    assign(data.image_size, table.whole("image_size", 1, 4096));
    data.eval_resize = data.image_size;
    assign(data.eval_resize, table.whole("eval_resize", data.image_size, 4096));
    assign(data.augment, table.truth("augment"));
    assign(data.area_min, table.number("area_min", 1e-3, 1));
  }
  table.finish();
  return data;
}

// What a task may add to its schedule: a cool-down, a warm-up of momentum, averaged weights.
void parse_tail(TomlTable& table, TrainSpec& train) {
  for (const char* key : {"cooldown", "cooldown_form", "cooldown_power"}) {
    if (table.has(key) && train.schedule != "wsd") {
      table.fail(key, "belongs to schedule 'wsd'; set it, or leave this out");
    }
  }
  assign(train.cooldown, table.number("cooldown", 1e-6, 1));
  assign(train.cooldown_form, table.word("cooldown_form", {"linear", "sqrt", "power"}));
  if (table.has("cooldown_power") && train.cooldown_form != "power") {
    table.fail("cooldown_power", "belongs to cooldown_form 'power'; set it, or leave this out");
  }
  assign(train.cooldown_power, table.number("cooldown_power", 1e-3, 1e3));
  assign(train.momentum_warmup, table.whole("momentum_warmup", 0, kMaxSteps));
  if (table.has("momentum_start") && train.momentum_warmup == 0) {
    table.fail("momentum_start",
               "needs momentum_warmup, the number of steps over which the momentum rises; set it");
  }
  assign(train.momentum_start, table.number("momentum_start", 0, 0.9999));
  assign(train.average_tail, table.number("average_tail", 0, 1));
}

TrainSpec parse_train(TomlTable& table) {
  TrainSpec train;
  assign(train.steps, table.whole("steps", 1, kMaxSteps));
  assign(train.epochs, table.whole("epochs", 1, kMaxEpochs));
  if ((train.steps == 0) == (train.epochs == 0)) {
    table.fail("", "[train] needs either steps or epochs, not both");
  }
  train.batch = table.required("batch", table.whole("batch", 1, kMaxBatch));
  assign(train.accumulate, table.whole("accumulate", 1, kMaxBatch));
  if (train.batch % train.accumulate != 0) {
    table.fail("accumulate", fmt::format("is {}; expected a divisor of the batch of {}",
                                         train.accumulate, train.batch));
  }
  assign(train.schedule, table.word("schedule", {"cosine", "wsd", "cosine-epoch", "constant"}));
  if (train.schedule == "cosine-epoch" && train.epochs == 0) {
    table.fail("schedule", "is 'cosine-epoch', which needs epochs; set epochs instead of steps");
  }
  assign(train.warmup, table.whole("warmup", 0, kMaxSteps));
  if (train.warmup > 0 &&
      (!train.has_warmup() || (train.steps > 0 && train.warmup >= train.steps))) {
    table.fail("warmup", fmt::format("is {}; expected schedule 'cosine' or 'wsd' and fewer warm-up "
                                     "steps than steps",
                                     train.warmup));
  }
  parse_tail(table, train);
  const std::int64_t longest = train.epochs > 0 ? kMaxEpochs : kMaxSteps;
  train.eval_interval = table.required("eval_interval", table.whole("eval_interval", 1, longest));
  assign(train.checkpoint_interval, table.whole("checkpoint_interval", 0, longest));
  assign(train.precision, table.word("precision", {"fp32", "bf16"}));
  assign(train.parameters, table.word("parameters", {"fp32", "bf16"}));
  assign(train.checkpoint_activations, table.truth("checkpoint_activations"));
  assign(train.clip, table.number("clip", 0, 1e9));
  train.route = route_from_string(table.required(
      "routing", table.word("routing", {"language", "vision", "all_matrices", "matrix", "rest"})));
  table.finish();
  return train;
}

// The engine's error at the line of the setting that is wrong; alone one may be wrong only for want
// of the others.
void check_options(const TomlTable& table, const OptimizerSpec& spec) {
  try {
    (void)Method::by_name(spec.optimizer, spec.settings);
    return;
  } catch (const Error& whole) {
    for (const auto& setting : spec.settings) {
      try {
        (void)Method::by_name(spec.optimizer, {setting});
      } catch (const Error&) {
        table.fail(setting.first, fmt::format("in [optimizers.{}]: {}", spec.name, whole.what()));
      }
    }
    table.fail("", fmt::format("[optimizers.{}]: {}", spec.name, whole.what()));
  }
}

OptimizerSpec parse_optimizer(TomlTable& table, const std::string& name,
                              const std::string& constants) {
  OptimizerSpec spec;
  if (!is_name(name)) {
    table.fail("", fmt::format("[optimizers.\"{}\"]: expected {}", printable(name), kNameRule));
  }
  spec.name = name;
  spec.optimizer = table.text("optimizer").value_or(name);
  spec.source = table.required("source", table.text("source"));
  spec.settings = table.rest_as_text();
  check_options(table, spec);
  if (constants.empty()) return spec;
  for (const auto& constant : constants_of(constants, spec.optimizer)) {
    const auto same = [&](const auto& own) { return own.first == constant.first; };
    if (std::none_of(spec.settings.begin(), spec.settings.end(), same)) {
      spec.settings.push_back(constant);
    }
  }
  check_options(table, spec);
  return spec;
}

void check_together(const Task& task, const TomlTable& root) {
  const bool language_model = task.model.vocab_size > 0;
  if (language_model != task.is_language()) {
    root.fail(
        "data",
        fmt::format(
            "is of kind '{}' and the model '{}'; expected both for language or both for images",
            task.data.kind, task.model.kind));
  }
  const std::int64_t size =
      task.is_language() ? task.data.sequence : task.data.image_size * task.data.image_size;
  const std::int64_t most = task.is_language() ? kMaxStepTokens : kMaxStepPixels;
  if (task.train.batch > most / size) {
    root.fail("train",
              fmt::format("has a batch of {} times {} {}; expected at most {} per step",
                          task.train.batch, size, task.is_language() ? "tokens" : "pixels", most));
  }
  if (task.model.positions > 0 && task.data.sequence > task.model.positions) {
    root.fail("data", fmt::format("has sequences of {}; expected at most the model's {} positions",
                                  task.data.sequence, task.model.positions));
  }
}

// [scale.tiny] with keys such as model.layers: whether they and their values exist is found by
// applying them.
std::vector<ScaleSpec> parse_scales(TomlTable& scales) {
  std::vector<ScaleSpec> out;
  for (const std::string& name : scales.keys()) {
    if (!is_name(name)) {
      scales.fail("", fmt::format("[scale.\"{}\"]: expected {}", printable(name), kNameRule));
    }
    ScaleSpec& scale = out.emplace_back(ScaleSpec{name, {}});
    TomlTable table = scales.required(name, scales.table(name));
    for (const char* section : {"model", "data", "train"}) {
      auto values = table.table(section);
      if (!values) continue;
      for (const auto& [key, value] : values->rest_as_text()) {
        scale.settings.emplace_back(fmt::format("{}.{}", section, key), value);
      }
    }
    table.finish();
    if (scale.settings.empty()) {
      scales.fail(name, "is empty; expected values such as model.layers = 2");
    }
  }
  return out;
}

}  // namespace

Task read_task(const toml::table& parsed, std::string_view name, std::string_view source) {
  TomlTable root(parsed, std::string(source), "", std::string(kTask));
  Task task;
  task.name = name;
  task.source = source;
  task.title = root.required("title", root.text("title"));
  auto model = root.required("model", root.table("model"));
  auto data = root.required("data", root.table("data"));
  auto train = root.required("train", root.table("train"));
  auto optimizers = root.required("optimizers", root.table("optimizers"));
  const std::string constants = root.word("constants", constant_sets()).value_or("");
  auto scales = root.table("scale");
  auto sweep = root.table("sweep");
  root.finish();
  task.model = parse_model(model);
  task.data = parse_data(data);
  task.train = parse_train(train);
  for (const std::string& key : optimizers.keys()) {
    auto table = optimizers.required(key, optimizers.table(key));
    task.optimizers.push_back(parse_optimizer(table, key, constants));
  }
  if (task.optimizers.empty()) optimizers.fail("", "[optimizers] is empty; expected at least one");
  if (scales) task.scales = parse_scales(*scales);
  check_together(task, root);
  if (sweep) task.sweep = parse_sweep(*sweep, task);
  return task;
}

Task parse_task(std::string_view text, std::string_view name, std::string_view source) {
  require_name(name, kTask, "task");
  Task task = read_task(parse_toml(text, source, kTask), name, source);
  for (const ScaleSpec& scale : task.scales) (void)with_scale(task, scale.name);
  return task;
}

}  // namespace rode::lab
