// SPDX-License-Identifier: Apache-2.0
// The trainer: resumed runs are the same bit for bit, and steps follow their options.
#include <cmath>
#include <csignal>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lab/run/interrupt.h"
#include "lab/text/token_folder.h"
#include "lab/train/trainer.h"
#include "rode/safetensors.h"
#include "support.h"
#include "train_support.h"

namespace rode::lab {
namespace {

class Resume : public testing::TestWithParam<const char*> {};

// Stopped by the hook after every possible number of questions: between steps and in evaluations.
TEST_P(Resume, OfAStoppedRunIsTheSameToTheBit) {
  const Scratch scratch;
  const Task task = small_task("accumulate = 2\nclip = 1.0\n", "dropout = 0.1\n");
  TrainOptions options = options_for(task, GetParam(), scratch / "whole");
  Trainer(options).run();
  const Left whole(options.out);
  options.out = scratch / "parts";
  options.resume = true;
  int stops = 0;
  for (int allowed = 1;; allowed = allowed % 7 + 3) {
    int asked = 0;
    TrainHooks hooks;
    hooks.stop = [&] { return ++asked > allowed; };
    const TrainOutcome outcome = Trainer(options, hooks).run();
    if (outcome.status == TrainStatus::finished) break;
    ASSERT_LT(++stops, 100);
  }
  EXPECT_GT(stops, 2);
  expect_same(Left(options.out), whole);
  EXPECT_EQ(RunFolder(options.out).checkpoints().size(), 2U);
}
INSTANTIATE_TEST_SUITE_P(Optimizers, Resume, testing::Values("rode", "muon-rms", "soap", "adamw"));

// Dropout has drawn and BatchNorm has counted when a batch is dropped between two of its parts.
TEST(Training, ABatchThatIsDroppedHalfWayLeavesNoTrace) {
  const Scratch scratch;
  Task images = load_task("tiny-vision");
  images.train.steps = 3;
  images.train.warmup = 1;
  images.train.batch = 8;
  images.train.accumulate = 4;
  images.train.eval_interval = 3;
  images.data.train_samples = 36;
  images.data.eval_samples = 8;
  Task words = small_task("accumulate = 4\n", "dropout = 0.1\n");
  words.train.steps = 3;
  words.train.warmup = 1;
  for (const Task& task : {words, images}) {
    TrainOptions options = options_for(task, "adamw", scratch / (task.name + "-whole"));
    Trainer(options).run();
    const Left whole(options.out);
    options.out = scratch / task.name;
    options.resume = true;
    int questions = -1;  // since the first step
    TrainHooks hooks;
    hooks.progress = [&](const Progress& progress) {
      if (progress.step == 1) questions = 0;
    };
    hooks.stop = [&] { return questions >= 0 && ++questions == 3; };
    const TrainOutcome stopped = Trainer(options, hooks).run();
    ASSERT_EQ(stopped.status, TrainStatus::interrupted);
    EXPECT_EQ(stopped.step, 1);  // the third check is inside the second step
    EXPECT_EQ(RunFolder(options.out).checkpoints().back(), 1);
    EXPECT_EQ(Trainer(options).run().status, TrainStatus::finished);
    expect_same(Left(options.out), whole);
  }
}

TEST(Training, TellsOnlyWhatIsKnownAndHowFarAnEvaluationIs) {
  const Scratch scratch;
  TrainOptions options = options_for(small_task("accumulate = 4\n"), "rode", scratch / "run");
  options.until = 2;
  std::vector<Progress> told;
  TrainHooks hooks;
  hooks.progress = [&](const Progress& progress) { told.push_back(progress); };
  Trainer(options, hooks).run();
  ASSERT_EQ(told.size(), 6U);  // 2, 2 and 2 of 6 samples, the evaluation, two steps
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_FALSE(told[i].loss || told[i].rates || told[i].units_per_second || told[i].seconds_left);
    EXPECT_EQ(told[i].eval_loss.has_value(), i == 3);
    EXPECT_EQ(told[i].evaluating.has_value(), i < 3);
  }
  EXPECT_EQ(told[1].evaluating->done, 4);
  EXPECT_EQ(told[1].evaluating->total, 6);
  EXPECT_TRUE(told[4].loss && told[4].rates && told[4].units_per_second && told[4].seconds_left);
}

TEST(Training, AModelLargerThanTheMachineIsRefusedBeforeAnythingIsWritten) {
  const Scratch scratch;
  Task task = small_task();
  task.model.mlp_width = std::int64_t{1} << 43;  // beyond any address space
  const TrainOptions options = options_for(task, "adamw", scratch / "run");
  const std::string error = error_of([&] { const Trainer trainer(options); });
  EXPECT_MENTIONS(error, "choose a smaller model");
  EXPECT_FALSE(std::filesystem::exists(options.out));
}

TEST(Training, ImagesAreResumedWithTheirStatistics) {
  const Scratch scratch;
  Task task = load_task("tiny-vision");
  task.train.steps = 10;
  task.train.warmup = 2;
  task.train.batch = 8;
  task.train.eval_interval = 5;
  task.data.train_samples = 36;
  task.data.eval_samples = 24;
  TrainOptions options = options_for(task, "rode", scratch / "whole");
  const Json result = Trainer(options).run().result;
  EXPECT_GE(result.value("final_accuracy", -1.0), 0.0);
  const Left whole(options.out);
  options.out = scratch / "parts";
  options.resume = true;
  int asked = 0;
  TrainHooks hooks;
  hooks.stop = [&] { return ++asked > 8; };
  EXPECT_EQ(Trainer(options, hooks).run().status, TrainStatus::interrupted);
  EXPECT_EQ(Trainer(options).run().status, TrainStatus::finished);
  expect_same(Left(options.out), whole);
}

TEST(Training, AccumulatedPartsGiveTheGradientOfTheWholeBatch) {
  const Scratch scratch;
  const auto losses = [&](const char* name, const std::string& extra) {
    TrainOptions options = options_for(small_task(extra), "adamw", scratch / name);
    options.settings = {{"lr", "1e-2"}, {"lr_rest", "3e-2"}};
    Trainer(options).run();
    std::vector<double> out;
    for (const Json& line : read_json_lines(options.out / "log.jsonl")) {
      if (line["kind"] == "step") out.push_back(line["loss"]);
    }
    return out;
  };
  const auto whole = losses("one", "");
  const auto parts = losses("four", "accumulate = 4\n");
  ASSERT_EQ(whole.size(), parts.size());
  EXPECT_LT(whole.back(), whole.front() - 0.05);  // it learns, so that the comparison says much
  // Sums in another order: rounding alone, which 24 steps may enlarge.
  for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(whole[i], parts[i], 1e-3);
}

TEST(Training, LogsEveryStepWithTheRatesOfTheSchedule) {
  const Scratch scratch;
  const Task task = small_task();
  const TrainOptions options = options_for(task, "rode", scratch / "run");
  Trainer(options).run();
  const RunPlan plan = plan_run(task, 40, 0);
  std::int64_t steps = 0;
  std::vector<std::int64_t> evaluations;
  for (const Json& line : read_json_lines(options.out / "log.jsonl")) {
    if (line["kind"] == "evaluation") {
      evaluations.push_back(line["step"]);
      EXPECT_EQ(line["matrices"].size(), 7U);
      continue;
    }
    EXPECT_EQ(line["step"], steps);
    const double multiplier = plan.multiplier(steps++);
    EXPECT_DOUBLE_EQ(line["multiplier"], multiplier);
    EXPECT_DOUBLE_EQ(line["lr"], 1e-2 * multiplier);
    EXPECT_DOUBLE_EQ(line["lr_rho"], 1e-2 * multiplier);
    EXPECT_DOUBLE_EQ(line["lr_rest"], 3e-3 * multiplier);
    EXPECT_GT(line["gradient_norm"], 0);
    EXPECT_GT(line["update_norm"], 0);
    EXPECT_EQ(line.contains("matrices"), plan.evaluates_at(steps));
    if (line.contains("matrices")) {
      for (const auto& [name, values] : line["matrices"].items()) EXPECT_GT(values["theta"], 0);
    }
  }
  EXPECT_EQ(steps, 24);
  EXPECT_EQ(evaluations, (std::vector<std::int64_t>{0, 8, 16, 24}));
}

TEST(Training, AFinishedRunIsNotRunAgain) {
  const Scratch scratch;
  TrainOptions options = options_for(small_task(), "adamw", scratch / "run");
  const Json first = Trainer(options).run().result;
  EXPECT_MENTIONS(error_of([&] { Trainer trainer(options); }), "--resume");
  options.resume = true;
  const auto before = std::filesystem::last_write_time(options.out / "log.jsonl");
  EXPECT_EQ(Trainer(options).run().result, first);
  EXPECT_EQ(std::filesystem::last_write_time(options.out / "log.jsonl"), before);
  options.seed = 2;
  EXPECT_MENTIONS(error_of([&] { Trainer trainer(options); }), "/seed is 1 there and 2 here");
}

TEST(Training, TellsTheBytesOfStateAndWorkspace) {
  const Scratch scratch;
  const auto result = [&](const char* optimizer) {
    return Trainer(options_for(small_task(), optimizer, scratch / optimizer)).run().result;
  };
  const Json adamw = result("adamw");
  const Json rode = result("rode");
  // Adam has two moments of every weight, and no matrix products to find room for.
  EXPECT_GT(adamw.value("state_bytes", -1), rode.value("state_bytes", -1));
  EXPECT_GT(rode.value("workspace_bytes", -1), adamw.value("workspace_bytes", -1));
  EXPECT_GE(adamw.value("workspace_bytes", -1), 0);
}

TEST(Training, SeedsDecideWeightsAndOrder) {
  const Scratch scratch;
  TrainOptions options = options_for(small_task(), "adamw", scratch / "a");
  Trainer(options).run();
  options.out = scratch / "b";
  Trainer(options).run();
  expect_same(Left(scratch / "a"), Left(scratch / "b"));
  options.out = scratch / "c";
  options.seed = 2;
  Trainer(options).run();
  EXPECT_NE(Left(scratch / "a").log, Left(scratch / "c").log);
}

TEST(Training, PausesWhereItIsToldAndGoesOnAsIfItHadNot) {
  const Scratch scratch;
  TrainOptions options = options_for(small_task(), "adamw", scratch / "whole");
  Trainer(options).run();
  const Left whole(options.out);
  options.out = scratch / "parts";
  options.until = 16;
  const TrainOutcome paused = Trainer(options).run();
  EXPECT_EQ(paused.status, TrainStatus::paused);
  EXPECT_EQ(paused.step, 16);
  EXPECT_EQ(paused.result["status"], "paused");
  EXPECT_EQ(paused.result["step"], 16);
  EXPECT_FALSE(RunFolder(options.out).result());
  const Json last = read_json_lines(options.out / "log.jsonl").back();
  EXPECT_EQ(last["kind"], "evaluation");  // that of step 16 is part of it
  EXPECT_EQ(last["step"], 16);
  options.until = 0;
  options.resume = true;
  EXPECT_EQ(Trainer(options).run().status, TrainStatus::finished);
  expect_same(Left(options.out), whole);
}

// As on a GPU, where losses are read some steps late.
TEST(Training, LateReadingChangesNothingButTheNormsOfStepsInBetween) {
  const Scratch scratch;
  TrainOptions options = options_for(small_task(), "rode", scratch / "at_once");
  Trainer(options).run();
  const Left at_once(options.out);
  options.out = scratch / "late";
  options.read_interval = 5;
  options.resume = true;
  int asked = 0;
  TrainHooks hooks;
  hooks.stop = [&] { return ++asked > 13; };  // steps are waiting then
  EXPECT_EQ(Trainer(options, hooks).run().status, TrainStatus::interrupted);
  EXPECT_EQ(Trainer(options).run().status, TrainStatus::finished);
  const Left late(options.out);
  EXPECT_TRUE(late.weights == at_once.weights);
  auto expected = read_json_lines(scratch / "at_once" / "log.jsonl");
  const auto found = read_json_lines(scratch / "late" / "log.jsonl");
  ASSERT_EQ(found.size(), expected.size());
  std::size_t without = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (!found[i].contains("weight_norm")) {
      ++without;
      for (const char* key : {"gradient_norm", "weight_norm", "update_norm", "update_ratio"}) {
        expected[i].erase(key);
      }
    }
    EXPECT_EQ(found[i], expected[i]);
  }
  EXPECT_GT(without, 8U);
}

// Decay with the wrong sign in effect: weights grow by a factor a step, and leave the range of
// fp32 only after some checkpoints.
TEST(Training, ADivergedRunStopsAndKeepsItsLastGoodCheckpoint) {
  const Scratch scratch;
  std::vector<Json> ends;
  for (const std::int64_t interval : {1, 5}) {
    TrainOptions options =
        options_for(small_task(), "adamw", scratch / std::to_string(interval).c_str());
    options.settings = {{"lr", "3e-3"}, {"weight_decay", "1e5"}, {"weight_decay_rest", "0"}};
    options.read_interval = interval;
    const std::string error = error_of([&] { Trainer(options).run(); });
    EXPECT_MENTIONS(error, "lower the rates");
    EXPECT_MENTIONS(error, "--overwrite or another --out");
    const RunFolder folder(options.out);
    EXPECT_EQ(folder.result()->value("status", ""), "diverged");
    ends.push_back(read_json_lines(folder.log()).back());
    ASSERT_FALSE(folder.checkpoints().empty()) << error;
    EXPECT_MENTIONS(error, folder.checkpoint(folder.checkpoints().back()).string());
    for (const std::int64_t step : folder.checkpoints()) {
      const auto file = SafetensorsFile::open(folder.checkpoint(step));
      for (const std::string& name : file.names()) {
        const ConstTensorView view = file.tensor(name);
        if (view.dtype != DType::f32) continue;
        const auto* values = static_cast<const float*>(view.data);
        for (std::int64_t i = 0; i < view.numel(); ++i) {
          ASSERT_TRUE(std::isfinite(values[i])) << name;
        }
      }
    }
  }
  EXPECT_EQ(ends[0]["step"], ends[1]["step"]);  // where it happened, not where it was seen
}

// Eight equal parts, each an eighth of the gradient: a sum in fp32 equals that of one part bit for
// bit, one in bf16 does not.
TEST(Training, PartsOfABf16GradientAreSummedInFp32) {
  const Scratch scratch;
  const auto weights = [&](const char* name, std::int64_t parts) {
    Task task = small_task("parameters = \"bf16\"\n");
    task.data.train_samples = 1;
    task.train.batch = parts;
    task.train.accumulate = parts;
    TrainOptions options = options_for(task, "adamw", scratch / name);
    options.until = 3;
    Trainer(options).run();
    const auto file = SafetensorsFile::open(RunFolder(options.out).checkpoint(3));
    std::string bytes;
    for (const std::string& tensor : file.names()) {
      const ConstTensorView view = file.tensor(tensor);
      bytes.append(static_cast<const char*>(view.data), view.bytes());
    }
    return bytes;
  };
  const std::string one = weights("one", 1);
  EXPECT_FALSE(one.empty());
  EXPECT_TRUE(weights("eight", 8) == one);
}

TEST(Training, ATooSmallVocabularyOrAMissingShardIsNamedBeforeAnythingIsWritten) {
  const Scratch scratch;
  Task task = small_task();
  task.data.kind = "tokens";
  task.data.path = "text";
  TrainOptions options = options_for(task, "adamw", scratch / "run");
  options.data_folder = scratch.path();
  EXPECT_MENTIONS(error_of([&] { Trainer trainer(options); }), "text");
  std::filesystem::create_directories(scratch / "text");
  for (const char* split : {"train", "valid"}) {
    TokenFolderWriter writer(scratch / "text", {"bytes", 257, 256, {}}, {.split = split});
    writer.append(std::vector<Token>(500, 3));
    writer.finish();
  }
  EXPECT_MENTIONS(error_of([&] { Trainer trainer(options); }), "257");
  EXPECT_FALSE(std::filesystem::exists(options.out));
}

TEST(Interrupt, TheFirstSignalAsksAndTheSecondOfEitherKindEnds) {
  for (const int first : {SIGINT, SIGTERM}) {
    for (const int second : {SIGINT, SIGTERM}) {
      const pid_t child = ::fork();
      if (child == 0) {
        const InterruptGuard guard;
        ::raise(first);
        if (!InterruptGuard::requested()) ::_exit(3);
        ::raise(second);
        ::_exit(4);
      }
      int status = 0;
      ::waitpid(child, &status, 0);
      ASSERT_TRUE(WIFSIGNALED(status));
      EXPECT_EQ(WTERMSIG(status), second);
    }
  }
}

}  // namespace
}  // namespace rode::lab
