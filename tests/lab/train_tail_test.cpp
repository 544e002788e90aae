// SPDX-License-Identifier: Apache-2.0
// What a task adds to its schedule: a cool-down, a warm-up of momentum, averaged weights.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lab/train/trainer.h"
#include "rode/method.h"
#include "rode/safetensors.h"
#include "support.h"
#include "train_support.h"

namespace rode::lab {
namespace {

std::vector<double> values_of(const std::filesystem::path& out, const std::string& key) {
  std::vector<double> values;
  for (const Json& line : of_kind(out, "step")) values.push_back(line.at(key));
  return values;
}

TEST(Schedules, StableDecayHoldsTheRatesAndCoolsDownAtTheEnd) {
  const Scratch scratch;
  const TrainOptions options =
      options_for(small_task("schedule = \"wsd\"\ncooldown = 0.25\ncooldown_form = \"sqrt\"\n"),
                  "rode", scratch / "run");
  Trainer(options).run();
  const auto found = values_of(options.out, "multiplier");
  ASSERT_EQ(found.size(), 24U);
  for (std::size_t t = 0; t < 24; ++t) {
    const double expected = t < 3     ? static_cast<double>(t + 1) / 3
                            : t <= 18 ? 1.0
                                      : 1 - std::sqrt(static_cast<double>(t - 18) / 6);
    EXPECT_NEAR(found[t], expected, 1e-15) << t;
  }
}

TEST(MomentumWarmUp, IsLinearAndActs) {
  const Scratch scratch;
  TrainOptions options = options_for(small_task(), "rode", scratch / "plain");
  Trainer(options).run();
  const std::string plain = read_file(options.out / "model.safetensors");
  EXPECT_FALSE(of_kind(options.out, "step")[0].contains("momentum"));
  const double own = Method::by_name("rode", {}).number("momentum").value();

  // From its own value on: the same weights.
  options.task = small_task("momentum_warmup = 10\nmomentum_start = " + std::to_string(own) + "\n");
  options.out = scratch / "same";
  Trainer(options).run();
  EXPECT_EQ(read_file(options.out / "model.safetensors") == plain, true);

  options.task = small_task("momentum_warmup = 10\nmomentum_start = 0.5\n");
  options.out = scratch / "warm";
  Trainer(options).run();
  EXPECT_EQ(read_file(options.out / "model.safetensors") == plain, false);
  const auto found = values_of(options.out, "momentum");
  for (std::size_t t = 0; t < found.size(); ++t) {
    const double expected = t < 10 ? 0.5 + (own - 0.5) * static_cast<double>(t) / 10 : own;
    EXPECT_NEAR(found[t], expected, 1e-15) << t;
  }

  // Resumed in the middle of it.
  options.out = scratch / "resumed";
  options.until = 6;
  Trainer(options).run();
  options.resume = true;
  options.until = 0;
  Trainer(options).run();
  expect_same(Left(options.out), Left(scratch / "warm"));

  std::vector<std::string> notes;
  TrainOptions none = options_for(options.task, "adamw", scratch / "adamw");
  TrainHooks hooks;
  hooks.note = [&](std::string_view text) { notes.emplace_back(text); };
  Trainer(none, hooks).run();
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_MENTIONS(notes[0], "momentum_warmup");
}

// The oracle: checkpoints of every step of the tail, averaged here in double.
TEST(TailAverage, IsTheMeanOfTheLastWeightsAndIsEvaluatedSavedAndResumed) {
  const Scratch scratch;
  TrainOptions options =
      options_for(small_task("average_tail = 0.25\n"), "rode", scratch / "whole");
  options.task.train.checkpoint_interval = 1;
  options.keep = 100;
  Trainer(options).run();
  const RunFolder folder(options.out);
  const auto averaged = SafetensorsFile::open(options.out / "averaged" / "model.safetensors");
  const auto last = SafetensorsFile::open(options.out / "model.safetensors");
  const std::string name = "model.layers.0.mlp.down_proj.weight";
  const std::size_t count = static_cast<std::size_t>(averaged.tensor(name).numel());
  const auto numbers = [&](const SafetensorsFile& file, const std::string& key) {
    const auto* data = static_cast<const float*>(file.tensor(key).data);
    return std::vector<double>(data, data + count);
  };
  // The checkpoint's own name of it, whatever the module calls it.
  std::string own;
  const auto whole = numbers(last, name);
  std::vector<double> mean(count, 0.0);
  for (std::int64_t step = 19; step <= 24; ++step) {
    const auto file = SafetensorsFile::open(folder.checkpoint(step));
    if (own.empty()) {
      for (const std::string& key : file.names()) {
        if (key.starts_with("param.") && key.find("down") != std::string::npos) own = key;
      }
    }
    const auto values = numbers(file, own);
    for (std::size_t i = 0; i < count; ++i) mean[i] += values[i] / 6;
  }
  const auto found = numbers(averaged, name);
  double moved = 0;
  for (std::size_t i = 0; i < count; ++i) {
    EXPECT_NEAR(found[i], mean[i], 1e-6 * std::abs(mean[i]) + 1e-8);
    moved = std::max(moved, std::abs(found[i] - whole[i]));
  }
  EXPECT_GT(moved, 1e-5) << "the average is not the last weights";  // 100 times the tolerance

  // Its loss in the log is that of a run that begins from it.
  const auto evaluations = of_kind(options.out, "evaluation");
  EXPECT_FALSE(evaluations[evaluations.size() - 2].contains("averaged_loss"));
  const double loss = evaluations.back().at("averaged_loss");
  EXPECT_NE(loss, evaluations.back().at("loss").get<double>());
  EXPECT_EQ(read_json(options.out / "result.json").at("averaged_loss").get<double>(), loss);
  TrainOptions from = options_for(small_task(), "rode", scratch / "from");
  from.weights = options.out / "averaged" / "model.safetensors";
  from.until = 1;
  Trainer(from).run();
  EXPECT_EQ(of_kind(from.out, "evaluation").front().at("loss").get<double>(), loss);

  // Without it the weights are the same; stopped within the tail and resumed, all of it is.
  TrainOptions plain = options_for(small_task(), "rode", scratch / "plain");
  Trainer(plain).run();
  EXPECT_EQ(
      read_file(plain.out / "model.safetensors") == read_file(options.out / "model.safetensors"),
      true);
  TrainOptions resumed = options;
  resumed.out = scratch / "resumed";
  resumed.until = 21;
  Trainer(resumed).run();
  resumed.resume = true;
  resumed.until = 0;
  Trainer(resumed).run();
  expect_same(Left(resumed.out), Left(options.out));
  EXPECT_EQ(read_file(resumed.out / "averaged" / "model.safetensors") ==
                read_file(options.out / "averaged" / "model.safetensors"),
            true);
}

// The averages of its old end count steps that the longer run's tail has not.
TEST(TailAverage, OfARunThatIsExtendedBeginsThereAtTheEarliest) {
  const Scratch scratch;
  TrainOptions options = options_for(small_task("average_tail = 0.25\n"), "rode", scratch / "run");
  Trainer(options).run();
  const auto averaged = [&] { return read_json(options.out / "result.json").at("averaged_steps"); };
  EXPECT_EQ(averaged(), 6);
  options.resume = true;
  options.steps = 26;
  {
    const Trainer killed(options);
  }  // after the folder says that it is longer, before a step
  EXPECT_EQ(RunFolder(options.out).last_extension(), 24);
  Trainer(options).run();
  EXPECT_EQ(averaged(), 2);
  // Where the new tail begins later, it is whole.
  options.steps = 40;
  Trainer(options).run();
  EXPECT_EQ(averaged(), 10);
}

}  // namespace
}  // namespace rode::lab
