// SPDX-License-Identifier: Apache-2.0
// What a run writes and plans, without Torch: logs, events, folders, schedules, progress.
#include <cmath>
#include <csignal>
#include <cstring>

#include <gtest/gtest.h>
#include <sys/resource.h>

#include "lab/run/append_file.h"
#include "lab/run/event_file.h"
#include "lab/run/folder.h"
#include "lab/run/lock.h"
#include "lab/run/log.h"
#include "lab/run/plan.h"
#include "lab/run/progress.h"
#include "support.h"

namespace rode::lab {
namespace {

Json some_run(int steps = 10) {
  return {{"format", 1},
          {"task", {{"name", "tiny-lm"}}},
          {"optimizer", "adamw"},
          {"options", {{"lr", "0.001"}}},
          {"seed", 1},
          {"steps", steps},
          {"version", "0.0.0"}};
}

// ---- Files ------------------------------------------------------------------------------------

TEST(AppendFile, ContinuesAtTheLengthItIsTold) {
  const Scratch scratch;
  {
    AppendFile(scratch / "log", 0).append("one\ntwo\nthr");
  }
  AppendFile file(scratch / "log", 8);
  file.append("three\n");
  file.sync();
  EXPECT_EQ(file.size(), 14U);
  EXPECT_EQ(read_file(scratch / "log"), "one\ntwo\nthree\n");
}

TEST(AppendFile, RefusesAFileShorterThanTheCheckpointSays) {
  const Scratch scratch;
  write_file(scratch / "log", "one\n");
  const std::string error = error_of([&] { AppendFile(scratch / "log", 5); });
  EXPECT_MENTIONS(error, "has 4 bytes");
  EXPECT_EQ(read_file(scratch / "log"), "one\n");
  EXPECT_MENTIONS(error_of([&] { AppendFile(scratch / "none", 5); }), "could not be opened");
  EXPECT_FALSE(std::filesystem::exists(scratch / "none"));
}

TEST(AppendFile, NamesAFullDisk) {
  const Scratch scratch;
  AppendFile file(scratch / "log", 0);
  file.append("whole\n");
  // A limit on the size of files stands for the disk's.
  struct rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  struct rlimit small = before;
  small.rlim_cur = 10;
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string error = error_of([&] { file.append("too long\n"); });
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_MENTIONS(error, "free some space");
  EXPECT_EQ(read_file(scratch / "log"), "whole\n");  // no half line is left
}

TEST(EventFile, ChecksumsAreCastagnolis) {
  EXPECT_EQ(crc32c("123456789"), 0xe3069283U);            // the check value of its definition
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aaU);  // RFC 3720, B.4
  EXPECT_EQ(masked_crc32c(""), 0xa282ead8U);
}

TEST(EventFile, HoldsWholeRecords) {
  const Scratch scratch;
  EventFile file(scratch.path(), 7);
  const std::vector<std::pair<std::string, double>> values = {{"train/loss", 1.5}};
  file.scalars(8, values);
  std::string bytes;
  for (const auto& entry : std::filesystem::directory_iterator(scratch.path())) {
    bytes = read_file(entry.path());
  }
  std::vector<std::string> records;
  for (std::size_t at = 0; at < bytes.size();) {
    std::uint64_t length = 0;
    std::uint32_t sum = 0;
    std::memcpy(&length, bytes.data() + at, 8);
    std::memcpy(&sum, bytes.data() + at + 8, 4);
    EXPECT_EQ(sum, masked_crc32c(bytes.substr(at, 8)));
    records.push_back(bytes.substr(at + 12, length));
    std::memcpy(&sum, bytes.data() + at + 12 + length, 4);
    EXPECT_EQ(sum, masked_crc32c(records.back()));
    at += 16 + length;
  }
  ASSERT_EQ(records.size(), 3U);
  EXPECT_MENTIONS(records[0], "brain.Event:2");
  EXPECT_MENTIONS(records[2], "train/loss");
}

// ---- The folder -------------------------------------------------------------------------------

TEST(RunFolder, KeepsTheLastCheckpointsAndIgnoresOtherFiles) {
  const Scratch scratch;
  const RunFolder folder(scratch / "run");
  folder.start(some_run(), false);
  for (const int step : {5, 100, 20}) write_file(folder.checkpoint(step), "x");
  write_file(folder.path() / "checkpoints" / "step-old.safetensors", "x");
  EXPECT_EQ(folder.checkpoints(), (std::vector<std::int64_t>{5, 20, 100}));
  folder.keep_last(2, 100);
  EXPECT_EQ(folder.checkpoints(), (std::vector<std::int64_t>{20, 100}));
  folder.keep_last(1, 20);  // never the one just saved
  EXPECT_EQ(folder.checkpoints(), (std::vector<std::int64_t>{20, 100}));
  folder.keep_last(0, 100);  // never the last one
  EXPECT_EQ(folder.checkpoints(), (std::vector<std::int64_t>{100}));
}

TEST(RunFolder, RefusesAnotherRunAndNamesWhatDiffers) {
  const Scratch scratch;
  const RunFolder folder(scratch / "run");
  folder.start(some_run(), false);
  EXPECT_MENTIONS(error_of([&] { folder.start(some_run(), false); }), "--resume");
  Json other = some_run();
  other["version"] = "9.9.9";
  folder.continue_run(other);
  other["options"]["lr"] = "0.002";
  const std::string error = error_of([&] { folder.continue_run(other); });
  EXPECT_MENTIONS(error, "/options/lr is \"0.001\" there and \"0.002\" here");
  folder.start(other, true);
  folder.continue_run(other);
}

TEST(RunFolder, DoesNotTouchFilesThatNoRunHasMade) {
  const Scratch scratch;
  write_file(scratch / "model.safetensors", "mine");
  const RunFolder folder(scratch.path());
  for (const bool overwrite : {false, true}) {
    EXPECT_MENTIONS(error_of([&] { folder.start(some_run(), overwrite); }), "another --out");
  }
  EXPECT_EQ(read_file(scratch / "model.safetensors"), "mine");
}

TEST(RunFolder, RemovesWhatAKilledWriterLeft) {
  const Scratch scratch;
  const RunFolder folder(scratch / "run");
  folder.start(some_run(), false);
  const auto left = folder.path() / "checkpoints" / ".rode-12-ab.tmp";
  write_file(left, "half");
  folder.continue_run(some_run());
  EXPECT_TRUE(std::filesystem::exists(left));  // perhaps another process writes it
  folder.remove_temporaries();
  EXPECT_FALSE(std::filesystem::exists(left));
}

TEST(RunFolder, StartsWhereAProcessWasKilledBeforeRunJson) {
  const Scratch scratch;
  const RunFolder folder(scratch / "run");
  std::filesystem::create_directories(folder.path() / "checkpoints");
  write_file(folder.path() / ".rode-12-ab.tmp", "half");
  folder.start(some_run(), false);
  EXPECT_TRUE(folder.has_run());
  EXPECT_FALSE(std::filesystem::exists(folder.path() / ".rode-12-ab.tmp"));
}

TEST(RunFolder, ReadsWholeLinesOfALog) {
  const Scratch scratch;
  write_file(scratch / "log", "{\"step\":1}\n{\"step\":2}\n{\"st");
  EXPECT_EQ(read_json_lines(scratch / "log").size(), 2U);
  write_file(scratch / "log", std::string("{\"step\":1}\n\0\0\n{\"step\":3}\n", 25));
  EXPECT_EQ(read_good_lines(scratch / "log").lines.size(), 1U);
  const std::string error = error_of([&] { read_json_lines(scratch / "log"); });
  EXPECT_MENTIONS(error, "line 2");
  EXPECT_EQ(error.find("remove"), std::string::npos) << error;  // checkpoints lie beside it
}

TEST(RunLock, IsHeldByOneAndLeftByItsEnd) {
  const Scratch scratch;
  {
    const RunLock lock(scratch.path());
    EXPECT_TRUE(lock.held());
    EXPECT_MENTIONS(error_of([&] { RunLock(scratch.path()); }), "another --out");
  }
  EXPECT_TRUE(RunLock(scratch.path()).held());
}

TEST(RunLog, ContinuesLogAndTimeOfTheStepItIsTold) {
  const Scratch scratch;
  const RunFolder folder(scratch / "run");
  folder.start(some_run(), false);
  std::uint64_t bytes = 0;
  {
    RunLog log(folder, 0, 0, false);
    log.step({.step = 0, .loss = 3});
    bytes = log.bytes();
    log.time(1, 5);
    log.step({.step = 1, .loss = 2});
    log.time(2, 5);
  }
  const std::string before = read_file(folder.log());
  write_file(folder.times(), "{\"step\":1,\"seconds\":40.0}\n{\"step\":2,\"seconds\":50.0}\n");
  RunLog log(folder, bytes, 1, false);
  EXPECT_GE(log.seconds(), 40);
  EXPECT_LT(log.seconds(), 50);
  log.step({.step = 1, .loss = 2});
  EXPECT_EQ(read_file(folder.log()), before);
  EXPECT_EQ(read_json_lines(folder.times()).size(), 1U);
}

// ---- The plan ---------------------------------------------------------------------------------

TEST(RunPlan, FollowsTheScheduleOfTheTask) {
  Task task = load_task("tiny-lm");
  const RunPlan plan = plan_run(task, 1000, 0);
  EXPECT_EQ(plan.total, task.train.steps);
  const auto w = static_cast<double>(task.train.warmup);
  const auto t = static_cast<double>(task.train.steps);
  EXPECT_DOUBLE_EQ(plan.multiplier(0), 1 / w);
  EXPECT_DOUBLE_EQ(plan.multiplier(task.train.warmup), 1);
  EXPECT_DOUBLE_EQ(plan.multiplier(task.train.steps - 1),
                   (1 + std::cos(std::acos(-1.0) * (t - 1 - w) / (t - w))) / 2);
  EXPECT_TRUE(plan.evaluates_at(0) && plan.evaluates_at(plan.total));
  EXPECT_FALSE(plan.saves_at(0));
}

TEST(RunPlan, KeepsTheWarmUpOfAShorterRunUnlessTold) {
  const Task task = load_task("tiny-lm");
  const RunPlan plan = plan_run(task, 1000, task.train.steps / 5);
  EXPECT_EQ(plan.warmup, task.train.warmup);
  EXPECT_EQ(plan.total, task.train.steps / 5);
  EXPECT_MENTIONS(describe_plan(task, plan), "100 steps of");
  EXPECT_MENTIONS(describe_plan(task, plan), "(the task has 500 steps), warm-up 50, cosine");
  EXPECT_EQ(plan_run(task, 1000, task.train.steps / 5, 7).warmup, 7);
  EXPECT_EQ(plan_run(task, 1000, 0, 0).warmup, 0);
  EXPECT_MENTIONS(error_of([&] { plan_run(task, 1000, task.train.warmup); }), "set --warmup");
}

TEST(RunPlan, TellsOfDataThatARunWouldRepeat) {
  const Task task = load_task("qwen2-1.5b");
  const auto needed = static_cast<std::uint64_t>(task.train.steps * task.train.batch);
  const auto note = [&](const Task& of, std::uint64_t samples) {
    return note_of_repeats(of, plan_run(of, samples, 0), samples);
  };
  EXPECT_EQ(note(task, needed), "");
  EXPECT_MENTIONS(note(task, needed / 3), "3.0 times");
  EXPECT_EQ(note(load_task("resnet50-cifar100"), 50000), "");  // whose epochs are meant
}

TEST(RunPlan, CountsTheSmallerLastBatchOfAnEpoch) {
  Task task = load_task("resnet50-cifar100");
  const RunPlan plan = plan_run(task, 50000, 0);
  EXPECT_EQ(plan.steps_per_epoch, 391);  // as a DataLoader that drops nothing
  EXPECT_EQ(plan_run(load_task("resnet50-imagenet"), 1281167, 0).steps_per_epoch, 5005);
  EXPECT_EQ(plan.total, task.train.epochs * plan.steps_per_epoch);
  EXPECT_DOUBLE_EQ(plan.multiplier(plan.steps_per_epoch - 1), 1);
  EXPECT_LT(plan.multiplier(plan.steps_per_epoch), 1);
  EXPECT_EQ(plan_run(task, 3, 0).steps_per_epoch, 1);
}

TEST(ResolveOptimizer, LetsTheCommandLineWinAndTellsOfDefaults) {
  const Task task = load_task("tiny-lm");
  const OptimizerSpec spec = resolve_optimizer(task, "rode", {{"lr", "0.5"}, {"snr", "true"}});
  const Method method = Method::by_name(spec.optimizer, spec.settings);
  for (const OptionInfo& info : method.options()) {
    if (info.key == "lr") {
      EXPECT_EQ(info.value, "0.5");
    } else if (info.key == "snr" || info.key == "nesterov") {
      EXPECT_EQ(info.value, "true") << info.key;  // nesterov is the task's
    }
  }
  EXPECT_EQ(note_of_defaults(task, spec), "");
  EXPECT_MENTIONS(error_of([&] { resolve_optimizer(task, "sap", {}); }), "no rates");
  const OptimizerSpec other = resolve_optimizer(task, "soap", {{"lr", "0.125"}});
  EXPECT_EQ(other.optimizer, "soap");
  EXPECT_EQ(other.settings, (Settings{{"lr", "0.125"}, {"rounding", "nearest"}}));  // the task's
  EXPECT_MENTIONS(note_of_defaults(task, other), "no rates for 'soap'");
  EXPECT_MENTIONS(note_of_defaults(task, other), "lr = 0.125");
}

TEST(ProgressLine, ShowsLossRatesSpeedAndTimeLeft) {
  Progress progress{.step = 50, .total = 200, .loss = 1.25};
  progress.eval_loss = 1.5;
  progress.rates = {.lr = 1e-3, .lr_rho = 2e-3, .lr_rest = 3e-3};
  progress.units_per_second = 12345;
  progress.seconds_left = 3661;
  progress.unit = "tokens";
  EXPECT_EQ(format_progress(progress),
            "[#####...............] 50/200  loss 1.2500  valid 1.5000  lr 1.00e-03 rho 2.00e-03 "
            "rest 3.00e-03  12.3k tokens/s  1:01:01 left");
  progress.evaluating = {.done = 32, .total = 768};
  EXPECT_EQ(format_progress(progress),
            "[#####...............] 50/200  loss 1.2500  valid 1.5000  evaluating 32/768");
}

TEST(ProgressLine, ShowsNothingThatIsNotKnown) {
  const Progress start{.step = 0, .total = 200};
  EXPECT_EQ(format_progress(start), "[....................] 0/200");
  const Progress evaluated{.step = 0, .total = 200, .eval_loss = 4.5, .evaluated = true};
  EXPECT_EQ(format_progress(evaluated), "[....................] 0/200  valid 4.5000");
}

}  // namespace
}  // namespace rode::lab
