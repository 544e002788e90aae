// SPDX-License-Identifier: Apache-2.0
// What a run can be asked for besides: a longer end, its best weights, given ones, norms of all
// steps.
#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lab/base/sha256.h"
#include "lab/train/trainer.h"
#include "support.h"
#include "train_support.h"

namespace rode::lab {
namespace {

TEST(Extension, OfAFinishedRunGoesOnWithTheLongerSchedule) {
  const Scratch scratch;
  TrainOptions options = options_for(small_task(), "rode", scratch / "run");
  Trainer(options).run();
  const auto before = of_kind(options.out, "step");
  options.resume = true;
  options.steps = 36;
  std::string notes;
  TrainHooks hooks;
  hooks.note = [&](std::string_view text) { notes += std::string(text) + "\n"; };
  const TrainOutcome outcome = Trainer(options, hooks).run();
  EXPECT_EQ(outcome.status, TrainStatus::finished);
  EXPECT_EQ(outcome.result.value("steps", 0), 36);
  EXPECT_MENTIONS(notes, "the finished run of 24 steps is extended to 36");
  EXPECT_MENTIONS(notes, "multiplier is now 0.2");
  const auto after = of_kind(options.out, "step");
  ASSERT_EQ(after.size(), 36U);
  for (std::size_t i = 0; i < after.size(); ++i) EXPECT_EQ(after[i].value("step", -1), i);
  EXPECT_TRUE(std::equal(before.begin(), before.end(), after.begin()));
  EXPECT_GT(after[24].value("multiplier", 0.0), before[23].value("multiplier", 0.0));
  const Json run = read_json(options.out / "run.json");
  EXPECT_EQ(run["extended"], Json::parse(R"([{"from": 24, "to": 36}])"));
  // Done again it is only read; shorter it is another run.
  EXPECT_EQ(Trainer(options).run().status, TrainStatus::finished);
  options.steps = 24;
  EXPECT_MENTIONS(error_of([&] { Trainer trainer(options); }), "/steps is 36 there and 24 here");
}

// Its result and its log are all that is left of such a run: they stay.
TEST(Extension, NeedsTheCheckpointOfTheLastStep) {
  const Scratch scratch;
  TrainOptions options = options_for(small_task(), "adamw", scratch / "run");
  Trainer(options).run();
  const Json result = read_json(options.out / "result.json");
  const auto log = read_json_lines(options.out / "log.jsonl");
  options.resume = true;
  options.steps = 36;
  const auto refused = [&](const char* what) {
    EXPECT_MENTIONS(error_of([&] { Trainer trainer(options); }), what);
    EXPECT_EQ(read_json(options.out / "result.json"), result);
    EXPECT_EQ(read_json_lines(options.out / "log.jsonl"), log);
  };
  const RunFolder folder(options.out);
  std::filesystem::resize_file(folder.checkpoint(24), 1000);
  refused("step-00000024");
  std::filesystem::remove_all(options.out / "checkpoints");
  refused("without the checkpoint of its last step");
}

TEST(Extension, IsForRunsThatAreDone) {
  const Scratch scratch;
  TrainOptions options = options_for(small_task(), "adamw", scratch / "run");
  options.until = 10;
  EXPECT_EQ(Trainer(options).run().status, TrainStatus::paused);
  options.resume = true;
  options.steps = 36;
  EXPECT_MENTIONS(error_of([&] { Trainer trainer(options); }), "/steps is 24 there and 36 here");
  // Killed between the result's end and the new run.json: only the checkpoint tells.
  options.steps = options.until = 0;
  EXPECT_EQ(Trainer(options).run().status, TrainStatus::finished);
  RunFolder(options.out).remove_result();
  options.steps = 36;
  EXPECT_EQ(Trainer(options).run().result.value("steps", 0), 36);
}

TEST(BestWeights, AreKeptAndCanBeBegunFrom) {
  const Scratch scratch;
  TrainOptions options = options_for(small_task(), "adamw", scratch / "run");
  // The rates make it worse towards the end.
  options.settings = {{"lr", "5e-2"}, {"lr_rest", "0.2"}};
  options.keep_best = true;
  const Json result = Trainer(options).run().result;
  const auto best = options.out / "best";
  const Json kept = read_json(best / "best.json");
  EXPECT_EQ(kept["step"], result["best_step"]);
  EXPECT_EQ(kept["loss"], result["best_loss"]);
  EXPECT_TRUE(std::filesystem::exists(best / "config.json"));

  TrainOptions other = options_for(small_task(), "rode", scratch / "from");
  other.weights = best / "model.safetensors";
  other.seed = 7;
  Trainer(other).run();
  const auto evaluations = of_kind(other.out, "evaluation");
  EXPECT_EQ(evaluations.front()["loss"], result["best_loss"]);
  const Json run = read_json(other.out / "run.json");
  EXPECT_EQ(run["weights"]["sha256"], sha256_of_file(other.weights));
  // Other weights make another run, and those of another model none.
  other.resume = true;
  other.weights.clear();
  EXPECT_MENTIONS(error_of([&] { Trainer trainer(other); }), "/weights");
  TrainOptions wrong = options_for(with_settings(small_task(), {{"model.mlp_width", "32"}}), "rode",
                                   scratch / "wrong");
  wrong.weights = best / "model.safetensors";
  EXPECT_MENTIONS(error_of([&] { Trainer trainer(wrong); }), "mlp");
  EXPECT_FALSE(std::filesystem::exists(wrong.out));
}

// As on a GPU: losses and diagnostics are read together every fifth step.
TEST(LogInterval, OfOneHasDiagnosticsInEveryLineWithoutReadingEveryStep) {
  const Scratch scratch;
  TrainOptions options = options_for(small_task("clip = 0.5\n"), "rode", scratch / "at_once");
  options.log_interval = 1;
  Trainer(options).run();
  const auto expected = of_kind(options.out, "step");
  options.out = scratch / "late";
  options.read_interval = 5;
  Trainer(options).run();
  EXPECT_EQ(read_file(scratch / "late" / "model.safetensors"),
            read_file(scratch / "at_once" / "model.safetensors"));
  const auto found = of_kind(options.out, "step");
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i], expected[i]);
    for (const char* key : {"gradient_norm", "weight_norm", "update_norm", "update_ratio"}) {
      EXPECT_TRUE(found[i].contains(key)) << key << " of step " << i;
    }
    ASSERT_TRUE(found[i].contains("matrices")) << i;
    EXPECT_FALSE(found[i]["matrices"].empty());
  }
  options.out = scratch / "third";
  options.log_interval = 3;
  Trainer(options).run();
  const auto third = of_kind(options.out, "step");
  EXPECT_TRUE(third[3].contains("weight_norm"));
  EXPECT_EQ(third[3]["matrices"], expected[3]["matrices"]);
  EXPECT_FALSE(third[1].contains("weight_norm"));
  EXPECT_FALSE(third[1].contains("matrices"));
}

TEST(Environment, IsRecordedAndNotCompared) {
  const Scratch scratch;
  TrainOptions options = options_for(small_task(), "adamw", scratch / "run");
  options.until = 5;
  Trainer(options).run();
  Json run = read_json(options.out / "run.json");
  for (const char* key : {"version", "commit", "torch", "cpu"}) {
    EXPECT_FALSE(run["environment"].value(key, "").empty()) << key;
  }
  run["environment"]["torch"] = "another";
  write_json(options.out / "run.json", run);
  options.resume = true;
  options.until = 0;
  EXPECT_EQ(Trainer(options).run().status, TrainStatus::finished);
}

}  // namespace
}  // namespace rode::lab
