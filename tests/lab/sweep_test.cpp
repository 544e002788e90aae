// SPDX-License-Identifier: Apache-2.0
// The [sweep] table of task files: what it says, and every kind of mistake with its line.
#include "lab/task/sweep.h"

#include <string>

#include <nlohmann/json.hpp>

#include "lab/support.h"
#include "lab/task/task.h"

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
warmup = 30
eval_interval = 30
routing = "language"
[optimizers.rode]
lr = 1e-2
source = "test"
[optimizers."second+"]
optimizer = "adamw"
source = "test"
[sweep]
trials = 4
steps = 60
eval_interval = 20
select = "mean-training-loss"
last_steps = 10
source = "test"
[sweep.spaces.rode]
lr = [1e-4, 1e-1]
lr_rho = 2e-3
[sweep.spaces."second+"]
lr = [1e-4, 1]
lr_rest = "lr"
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

TEST(SweepTable, IsReadWithRangesFixedAndTiedOptions) {
  const SweepSpec sweep = parse_task(kTask, "t", "t.toml").sweep;
  EXPECT_EQ(sweep.trials, 4);
  EXPECT_EQ(sweep.steps, 60);
  EXPECT_EQ(sweep.eval_interval, 20);
  EXPECT_EQ(sweep.select, "mean-training-loss");
  EXPECT_EQ(sweep.last_steps, 10);
  ASSERT_EQ(sweep.spaces.size(), 2U);
  ASSERT_EQ(sweep.spaces[0].options.size(), 2U);
  EXPECT_EQ(sweep.spaces[0].options[0].low, 1e-4);
  EXPECT_EQ(sweep.spaces[0].options[0].high, 1e-1);
  EXPECT_EQ(sweep.spaces[0].options[1].low, sweep.spaces[0].options[1].high);
  EXPECT_EQ(sweep.spaces[1].optimizer, "second+");
  EXPECT_EQ(sweep.spaces[1].options[1].same_as, "lr");
}

TEST(SweepTable, IsPrintedAsItIsRead) {
  const Task task = parse_task(kTask, "t", "t.toml");
  const auto json = to_json(task);
  EXPECT_EQ(json["sweep"]["spaces"].dump(), R"({"rode":{"lr":[0.0001,0.1],"lr_rho":0.002},)"
                                            R"("second+":{"lr":[0.0001,1.0],"lr_rest":"lr"}})");
  EXPECT_EQ(to_json(parse_task(to_toml(task), "t", "t.toml")), json);
  // A value of the task that --set replaces leaves the table as it is, and need not fit it.
  for (const auto& [key, value] :
       Settings{{"train.batch", "16"}, {"train.warmup", "90"}, {"train.epochs", "3"}}) {
    EXPECT_EQ(to_json(with_settings(task, {{key, value}}))["sweep"], json["sweep"]) << key;
  }
}

TEST(SweepTable, MayBeAbsent) {
  const Task task = parse_task(kTask.substr(0, kTask.find("[sweep]")), "t", "t.toml");
  EXPECT_EQ(task.sweep.trials, 0);
  EXPECT_FALSE(to_json(task).contains("sweep"));
  EXPECT_EQ(to_toml(task).find("sweep"), std::string::npos);
}

TEST(SweepTable, RefusesWrongKeysAndValuesWithTheirLine) {
  EXPECT_MENTIONS(message("trials = 4", "trails = 4"),
                  "'trails' is not a key in [sweep], and 'trials' is missing");
  EXPECT_MENTIONS(message("trials = 4", "trials = 4\nprune = true"),
                  "line 29: unknown key 'prune' in [sweep]");
  EXPECT_MENTIONS(message("trials = 4", "trials = 0"), "line 28: 'trials' is 0");
  EXPECT_MENTIONS(message("steps = 60", "steps = 30"), "more than the 30 steps of the warm-up");
  EXPECT_MENTIONS(message("\"mean-training-loss\"", "\"mean-loss\""),
                  "did you mean 'mean-training-loss'");
  EXPECT_MENTIONS(message("last_steps = 10", "last_steps = 61"), "from 1 to 60");
  EXPECT_MENTIONS(message("last_steps = 10\n", ""), "'last_steps' is missing");
  EXPECT_MENTIONS(message("\"mean-training-loss\"", "\"best-validation-loss\""),
                  "'last_steps' belongs to select = \"mean-training-loss\"");
  EXPECT_MENTIONS(message("steps = 300", "epochs = 3"), "'eval_interval' is in steps");
  EXPECT_MENTIONS(message("[sweep.spaces.rode]", "[sweep.spaces.rod]"), "did you mean 'rode'");
}

TEST(SweepTable, RefusesWrongSpacesWithTheirLine) {
  const std::string range = "lr = [1e-4, 1e-1]";
  for (const char* wrong :
       {"lr = [1e-1, 1e-4]", "lr = [1e-4, 1e-4]", "lr = [0, 1e-1]", "lr = [-1, 1]",
        "lr = [1, 2, 3]", "lr = [\"a\", \"b\"]", "lr = [1e-4, inf]", "lr = \"\"", "lr = nan"}) {
    const std::string text = message(range, wrong);
    EXPECT_MENTIONS(text, "line 35: 'lr'");
    EXPECT_MENTIONS(text, "expected [low, high] with 0 < low < high");
  }
  EXPECT_MENTIONS(message(range, "lrr = [1e-4, 1e-1]"), "did you mean 'lr'");
  for (const char* fixed : {"lr = 1e-4", "lr = [1e-4]"}) {
    EXPECT_MENTIONS(message(range, fixed), "line 34: [sweep.spaces.rode] has no range");
  }
  EXPECT_MENTIONS(message("lr_rest = \"lr\"", "lr_rest = \"l\""), "did you mean 'lr'");
  EXPECT_MENTIONS(message("lr_rest = \"lr\"", "lr_rest = \"lr_rest\""), "'lr_rest' is 'lr_rest'");
  EXPECT_MENTIONS(message("lr_rest = \"lr\"", "weight_decy = \"lr\""), "weight_decay");
  EXPECT_MENTIONS(message(range, range + "\nmomentum = [0.5, 2]"), "'momentum' in [sweep.spaces");
  EXPECT_MENTIONS(message(range, range + "\nns_steps = [3, 6]"), "'ns_steps' in [sweep.spaces");
}

}  // namespace
}  // namespace rode::lab
