// SPDX-License-Identifier: Apache-2.0
// Task files: those of the build, and every kind of mistake with its line.
#include "lab/task/task.h"

#include <memory>
#include <regex>

#include <nlohmann/json.hpp>

#include "lab/support.h"
#include "lab/task/sources.h"

namespace rode::lab {
namespace {

const std::string kTask = R"(title = "A task"
[model]
kind = "qwen2"
layers = 2
width = 64
heads = 4
kv_heads = 2
mlp_width = 176
vocab_size = 64
[data]
kind = "tiny-lm"
sequence = 64
train_samples = 100
eval_samples = 10
[train]
steps = 300
batch = 32
accumulate = 4
warmup = 30
eval_interval = 30
routing = "language"
[optimizers.rode]
lr = 1e-2
nesterov = true
source = "test"
[optimizers.second]
optimizer = "adamw"
betas = [0.9, 0.99]
source = "test"
)";

std::string replaced(const std::string& from, const std::string& to) {
  std::string text = kTask;
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

std::string message(const std::string& from, const std::string& to) {
  return error_of([&] { (void)parse_task(replaced(from, to), "t", "t.toml"); });
}

TEST(Task, IsReadWithDefaults) {
  const Task task = parse_task(kTask, "t", "t.toml");
  EXPECT_EQ(task.model.kind, "qwen2");
  EXPECT_EQ(task.model.kv_heads, 2);
  EXPECT_EQ(task.train.accumulate, 4);
  EXPECT_EQ(task.train.schedule, "cosine");
  EXPECT_EQ(task.train.route, Route::language);
  ASSERT_EQ(task.optimizers.size(), 2U);
  EXPECT_EQ(task.optimizers[0].name, "rode");
  EXPECT_EQ(task.optimizer("second").optimizer, "adamw");
  EXPECT_EQ(task.optimizer("second").settings, (Settings{{"betas", "0.9,0.99"}}));
  EXPECT_MENTIONS(error_of([&] { (void)task.optimizer("rod"); }), "did you mean 'rode'");
}

TEST(Task, NamesFileLineKeyAndTheNearest) {
  const std::string text = message("warmup = 30", "warm_up = 30");
  EXPECT_MENTIONS(text, "t.toml");
  EXPECT_MENTIONS(text, "line 19");
  EXPECT_MENTIONS(text, "'warm_up' in [train]");
  EXPECT_MENTIONS(text, "did you mean 'warmup'");
  EXPECT_MENTIONS(message("[data]", "[date]"),
                  "'date' is no key at the top, and 'data' is missing");
  EXPECT_MENTIONS(message("[data]", "[others]"), "'data' is missing at the top; add it");
  EXPECT_MENTIONS(message("[optimizers.rode]", "[optimisers.rode]"), "unknown key 'optimisers'");
}

TEST(Task, RefusesWrongValuesWithTheirLine) {
  EXPECT_MENTIONS(message("steps = 300", "steps = -3"), "line 16: 'steps' is -3");
  EXPECT_MENTIONS(message("steps = 300", "steps = 1.5"), "a whole number");
  EXPECT_MENTIONS(message("batch = 32", "batch = \"many\""), "line 17: 'batch' is many");
  EXPECT_MENTIONS(message("\"qwen2\"", "\"qwen\""), "did you mean 'qwen2'");
  EXPECT_MENTIONS(message("\"language\"", "\"languages\""), "did you mean 'language'");
  EXPECT_MENTIONS(message("accumulate = 4", "accumulate = 5"), "divisor of the batch");
  EXPECT_MENTIONS(message("kv_heads = 2", "kv_heads = 3"), "divisor of the 4 heads");
  EXPECT_MENTIONS(message("heads = 4", "heads = 5"), "divisor of the width");
  EXPECT_MENTIONS(message("warmup = 30", "warmup = 300"), "fewer warm-up steps");
  EXPECT_MENTIONS(message("steps = 300", "epochs = 3\nsteps = 300"), "not both");
  EXPECT_MENTIONS(message("steps = 300\n", ""), "steps or epochs");
  EXPECT_MENTIONS(message("\"tiny-lm\"\nsequence = 64", "\"tiny-vision\""), "both of language");
  EXPECT_MENTIONS(message("batch = 32", "batch = "), "line 17");
}

TEST(Task, HasTheEngineCheckTheOptimizers) {
  const std::string key = message("nesterov = true", "nestorov = true");
  EXPECT_MENTIONS(key, "line 24");
  EXPECT_MENTIONS(key, "nesterov");
  EXPECT_MENTIONS(message("lr = 1e-2", "lr = -1.0"), "line 23");
  EXPECT_MENTIONS(message("\"adamw\"", "\"adam\""), "adamw");
  EXPECT_MENTIONS(message("source = \"test\"\n", ""), "'source' is missing");
}

TEST(Tasks, OfTheBuildAreAllValid) {
  const auto names = task_names();
  EXPECT_GE(names.size(), 9U);
  for (const std::string& name : names) {
    const Task task = load_task(name);
    EXPECT_EQ(task.name, name);
    EXPECT_FALSE(to_json(task).dump().empty());
  }
  EXPECT_MENTIONS(error_of([] { (void)load_task("tiny-ml"); }), "did you mean 'tiny-lm'");
}

TEST(Tasks, HoldThePapersProtocols) {
  const Task gpt2 = load_task("gpt2");
  EXPECT_EQ(gpt2.train.steps, 8000);
  EXPECT_EQ(gpt2.train.batch / gpt2.train.accumulate, 16);
  EXPECT_EQ(gpt2.train.warmup, 100);
  EXPECT_EQ(gpt2.optimizer("rode").settings,
            (Settings{{"lr", "0.0006432"}, {"lr_rho", "0.01502"}, {"lr_rest", "0.005012"}}));
  const Task large = load_task("qwen2-1.5b");
  EXPECT_EQ(large.train.batch / large.train.accumulate, 2);
  EXPECT_EQ(large.train.parameters, "bf16");
  // The sizes recovered from the paper's tables: managed and delegated parameters.
  const ModelSpec m = load_task("qwen2-114m").model;
  const std::int64_t head = m.width / m.heads;
  const std::int64_t layer =
      m.width * m.width * 2 + 2 * m.width * m.kv_heads * head + 3 * m.width * m.mlp_width;
  EXPECT_EQ(m.layers * layer, 75'497'472);
  const std::int64_t biases = m.width + 2 * m.kv_heads * head;
  EXPECT_EQ(m.vocab_size * m.width + m.layers * (biases + 2 * m.width) + m.width, 38'631'936);
}

TEST(Tasks, OpenTheirData) {
  const Task language = load_task("tiny-lm");
  const auto train = open_sequences(language, Split::train, "nowhere");
  const auto valid = open_sequences(language, Split::valid, "nowhere");
  EXPECT_TRUE(train->best_loss());
  EXPECT_EQ(valid->size(), static_cast<std::uint64_t>(language.data.eval_samples));
  const Task vision = load_task("tiny-vision");
  EXPECT_EQ(open_images(vision, Split::train, "nowhere")->classes(), 12);
  EXPECT_MENTIONS(error_of([&] { open_images(language, Split::train, "nowhere"); }), "tiny-lm");
  EXPECT_MENTIONS(error_of([] { open_sequences(load_task("gpt2"), Split::train, "nowhere"); }),
                  "nowhere/wikitext-103");
}

TEST(Tasks, MayBeFiles) {
  const Scratch scratch;
  write_file(scratch / "mine.toml", kTask);
  EXPECT_EQ(load_task((scratch / "mine.toml").string()).name, "mine");
  EXPECT_MENTIONS(error_of([&] { (void)load_task((scratch / "no.toml").string()); }), "no.toml");
}

}  // namespace
}  // namespace rode::lab
