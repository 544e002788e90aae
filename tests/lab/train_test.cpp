// SPDX-License-Identifier: Apache-2.0
// The trainer: resumed runs are the same to the bit, and what goes wrong leaves a good checkpoint.
#include <cmath>
#include <csignal>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lab/data/token_folder.h"
#include "lab/train/interrupt.h"
#include "lab/train/trainer.h"
#include "rode/safetensors.h"
#include "support.h"

namespace rode::lab {
namespace {

Task small_task(const std::string& extra_train = "", const std::string& model_extra = "") {
  return parse_task(
      "title = \"Small\"\n"
      "[model]\nkind = \"qwen2\"\nlayers = 1\nwidth = 16\nheads = 2\nkv_heads = 2\n"
      "mlp_width = 24\nvocab_size = 64\n" +
          model_extra +
          "[data]\nkind = \"tiny-lm\"\nsequence = 12\ntrain_samples = 40\neval_samples = 6\n"
          "[train]\nsteps = 24\nbatch = 8\nwarmup = 3\neval_interval = 8\n"
          "checkpoint_interval = 3\nrouting = \"language\"\n" +
          extra_train +
          "[optimizers.rode]\nlr = 1e-2\nlr_rho = 1e-2\nlr_rest = 3e-3\nradius = \"adaptive\"\n"
          "source = \"test\"\n"
          "[optimizers.muon-rms]\nlr = 5e-3\nlr_rest = 3e-3\nsource = \"test\"\n"
          "[optimizers.soap]\nlr = 3e-3\nlr_rest = 3e-3\nsource = \"test\"\n"
          "[optimizers.adamw]\nlr = 3e-3\nlr_rest = 3e-3\nsource = \"test\"\n",
      "small", "test");
}

TrainOptions options_for(const Task& task, const std::string& optimizer,
                         const std::filesystem::path& out) {
  TrainOptions options;
  options.task = task;
  options.optimizer = optimizer;
  options.out = out;
  options.threads = 1;
  options.device = "cpu";
  return options;
}

// Everything that does not depend on time.
struct Left {
  std::string weights, log, checkpoint;
  explicit Left(const std::filesystem::path& out)
      : weights(read_file(out / "model.safetensors")),
        log(read_file(out / "log.jsonl")),
        checkpoint(read_file(RunFolder(out).checkpoint(RunFolder(out).checkpoints().back()))) {}
};

void expect_same(const Left& a, const Left& b) {
  EXPECT_FALSE(a.weights.empty());
  EXPECT_EQ(a.weights == b.weights, true) << "weights differ";
  EXPECT_EQ(a.log, b.log);
  EXPECT_EQ(a.checkpoint == b.checkpoint, true) << "checkpoints differ";
}

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
    options.settings = {{"lr", "3e-3"}, {"weight_decay", "1e5"}};
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

TEST(Training, ADamagedCheckpointIsPassedOver) {
  const Scratch scratch;
  TrainOptions options = options_for(small_task(), "rode", scratch / "run");
  int asked = 0;
  TrainHooks hooks;
  hooks.stop = [&] { return ++asked > 20; };
  Trainer(options, hooks).run();
  const RunFolder folder(options.out);
  ASSERT_EQ(folder.checkpoints().size(), 2U);
  const auto newest = folder.checkpoint(folder.checkpoints().back());
  std::filesystem::resize_file(newest, std::filesystem::file_size(newest) / 2);
  options.resume = true;
  std::string notes;
  TrainHooks noting;
  noting.note = [&](std::string_view text) { notes += text; };
  Trainer(options, noting).run();
  EXPECT_MENTIONS(notes, "the checkpoint before it is used");
  options.out = scratch / "whole";
  options.resume = false;
  Trainer(options).run();
  expect_same(Left(scratch / "run"), Left(scratch / "whole"));
}

struct Noted {
  std::string text;
  TrainHooks hooks() {
    TrainHooks out;
    out.note = [this](std::string_view note) { text += std::string(note) + "\n"; };
    return out;
  }
};

// A run of `task` that is saved after step 6, and the same one not interrupted.
struct SavedRun {
  explicit SavedRun(const Scratch& scratch, const Task& task = small_task())
      : options(options_for(task, "adamw", scratch / "whole")) {
    Trainer(options).run();
    options.out = scratch / "run";
    options.until = 6;
    Trainer(options).run();
    options.until = 0;
    options.resume = true;
  }
  RunFolder folder() const { return RunFolder(options.out); }

  TrainOptions options;
};

TEST(Training, ADamagedCheckpointDoesNotCountAsTheLastOne) {
  const Scratch scratch;
  SavedRun run(scratch);
  const RunFolder folder = run.folder();
  ASSERT_EQ(folder.checkpoints(), (std::vector<std::int64_t>{3, 6}));
  std::filesystem::resize_file(folder.checkpoint(6), 1000);
  run.options.keep = 1;
  run.options.until = 5;
  Noted noted;
  EXPECT_EQ(Trainer(run.options, noted.hooks()).run().step, 5);
  EXPECT_MENTIONS(noted.text, "step-00000006.safetensors.bad'");
  EXPECT_EQ(folder.checkpoints(), (std::vector<std::int64_t>{5}));
  EXPECT_TRUE(std::filesystem::exists(folder.checkpoint(6).string() + ".bad"));
  run.options.until = 0;
  EXPECT_EQ(Trainer(run.options).run().status, TrainStatus::finished);
  expect_same(Left(run.options.out), Left(scratch / "whole"));
}

TEST(Training, AFolderHasOneProcessAtATime) {
  const Scratch scratch;
  TrainOptions options = options_for(small_task(), "adamw", scratch / "new/deeper/run");
  {
    Trainer first(options);
    const auto half = options.out / "checkpoints" / ".rode-1-2.tmp";
    write_file(half, "being written");
    for (const bool resume : {true, false}) {
      TrainOptions second = options;
      second.resume = resume;
      second.overwrite = !resume;
      const std::string error = error_of([&] { Trainer trainer(second); });
      EXPECT_MENTIONS(error, "another process trains there");
      EXPECT_MENTIONS(error, options.out.string());
    }
    EXPECT_TRUE(std::filesystem::exists(half));  // not taken for one that was left
    EXPECT_EQ(first.run().status, TrainStatus::finished);
  }
  options.overwrite = true;
  EXPECT_EQ(Trainer(options).run().status, TrainStatus::finished);
}

TEST(Training, AMissingOrShortLogDoesNotStopAGoodCheckpoint) {
  for (const bool missing : {true, false}) {
    const Scratch scratch;
    SavedRun run(scratch);
    const RunFolder folder = run.folder();
    const auto lines = read_json_lines(folder.log());
    if (missing) {
      std::filesystem::remove(folder.log());
    } else {
      std::filesystem::resize_file(folder.log(), std::filesystem::file_size(folder.log()) - 5);
    }
    Noted noted;
    EXPECT_EQ(Trainer(run.options, noted.hooks()).run().status, TrainStatus::finished);
    EXPECT_MENTIONS(noted.text, missing ? "is missing" : "in whole lines");
    EXPECT_TRUE(read_file(folder.weights()) == read_file(scratch / "whole" / "model.safetensors"));
    auto expected = read_json_lines(scratch / "whole" / "log.jsonl");
    const auto first = expected.begin() + std::ssize(lines) - 1;
    expected.erase(missing ? expected.begin() : first, first + 1);
    EXPECT_EQ(read_json_lines(folder.log()), expected);
  }
}

TEST(Training, ADamagedLineOfTimesDoesNotStopAGoodCheckpoint) {
  for (const std::string& damage : {std::string(40, '\0'), std::string("{\"step\":\"x\"}")}) {
    const Scratch scratch;
    SavedRun run(scratch);
    const std::string good = "{\"step\":0,\"seconds\":40.0}\n";
    write_file(run.folder().times(), good + damage + "\n{\"step\":5,\"seconds\":50.0}\n");
    Noted noted;
    const Json result = Trainer(run.options, noted.hooks()).run().result;
    EXPECT_MENTIONS(noted.text, "damaged line");
    EXPECT_GE(result["seconds"], 40);
    EXPECT_EQ(read_file(run.folder().times()).substr(0, good.size()), good);
    EXPECT_GT(read_json_lines(run.folder().times()).size(), 1U);
    expect_same(Left(run.options.out), Left(scratch / "whole"));
  }
}

// As a checkpoint of a CPU has none of CUDA's.
TEST(Training, AGeneratorThatTheCheckpointDoesNotHaveBeginsAnew) {
  const Scratch scratch;
  SavedRun run(scratch);
  const auto path = run.folder().checkpoint(6);
  {
    const auto file = SafetensorsFile::open(path);
    std::vector<TensorEntry> entries;
    for (const std::string& name : file.names()) {
      const ConstTensorView view = file.tensor(name);
      if (name != "rng.cpu") entries.push_back({name, view});
    }
    EXPECT_EQ(entries.size() + 1, file.names().size());
    write_safetensors(path, entries, file.metadata());
  }
  Noted noted;
  EXPECT_EQ(Trainer(run.options, noted.hooks()).run().status, TrainStatus::finished);
  EXPECT_MENTIONS(noted.text, "no state of the generator of 'cpu'");
  // Nothing is drawn without dropout.
  EXPECT_TRUE(read_file(run.folder().weights()) ==
              read_file(scratch / "whole" / "model.safetensors"));
}

// Eight equal parts, each an eighth of the gradient: a sum in fp32 is that of one part alone to
// the bit, one in bf16 is not.
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
    writer.append(std::vector<std::uint16_t>(500, 3));
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
