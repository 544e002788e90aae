// SPDX-License-Identifier: Apache-2.0
// Tables of a report from files of other commands: systems cost, fine-tuning.
#include <filesystem>
#include <string>

#include <gtest/gtest.h>

#include "report_support.h"
#include "support.h"

namespace rode::lab {
namespace {

void put(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::create_directories(path.parent_path());
  write_file(path, text);
}

Json fake_evaluation(const std::string& optimizer, int seed, double gsm8k) {
  return {{"optimizer", optimizer},
          {"seed", seed},
          {"best_validation_loss", 0.35},
          {"options", {{"lr", 1e-5}, {"seed", seed}}},
          {"steps", 3000},
          {"limit", nullptr},
          {"tasks", {{"gsm8k", {{"accuracy", gsm8k}}}}}};
}

TEST(OtherFiles, OfSystemsAndEvaluationsAreTablesOfTheReport) {
  const Scratch scratch;
  put(scratch / "bench/systems.json", Json({{"bench", "systems"},
                                            {"warmup", 8},
                                            {"steps", 25},
                                            {"runs", 3},
                                            {"environment", {{"gpu", "some chip"}}},
                                            {"rows",
                                             {{{"task", "qwen2-114m"},
                                               {"optimizer", "adamw"},
                                               {"state_bytes", 913000000},
                                               {"step_ms", 10.0},
                                               {"optimizer_ms", 1.0},
                                               {"throughput_vs_adamw", 1.0}},
                                              {{"task", "qwen2-114m"},
                                               {"optimizer", "rode (loop)"},
                                               {"state_bytes", 611000000},
                                               {"step_ms", 12.5},
                                               {"optimizer_ms", 3.5},
                                               {"throughput_vs_adamw", 0.8}}}}})
                                          .dump());
  put(scratch / "tuned/a/run.json", "{\"model\": \"x\"}");
  put(scratch / "tuned/a/evaluation/results.json", fake_evaluation("rode", 1, 80).dump());
  put(scratch / "tuned/b/results.json", fake_evaluation("rode", 2, 84).dump());
  put(scratch / "tuned/c/results.json", fake_evaluation("adamw", 1, 70).dump());
  put(scratch / "tuned/d/results.json", fake_evaluation("rode", 2, 1).dump());
  Json other = fake_evaluation("adamw", 2, 70);
  other["steps"] = 10;
  put(scratch / "tuned/e/results.json", other.dump());
  put(scratch / "tuned/f/results.json", "{}");
  put(scratch / "tuned/g/run.json", "{\"model\": \"x\"}");
  const Report report = make_report(find_runs({scratch / "tuned", scratch / "bench/systems.json"}));
  ASSERT_EQ(report.tables.size(), 2U);
  const std::string text = to_markdown(report);
  // 82 +- sqrt(8), beside the paper's value; the best of the column.
  EXPECT_MENTIONS(text, "**82.00 ± 2.83**");
  EXPECT_MENTIONS(text, "85.47 ± 0.46");
  EXPECT_MENTIONS(text, "| 70.00 |");
  EXPECT_MENTIONS(text, "| qwen2-114m | rode (loop) | 611.0 | 12.50 | 3.50 | 0.80 | 611.0 |");
  EXPECT_MENTIONS(text, "172.3");
  EXPECT_MENTIONS(text, "some chip; 3 runs of 25 timed steps after 8");
  ASSERT_EQ(report.problems.size(), 4U);
  EXPECT_MENTIONS(report.problems[0].what, "neither from");
  EXPECT_MENTIONS(report.problems[1].what, "was not evaluated");
  EXPECT_MENTIONS(report.problems[2].what, "evaluated twice");
  EXPECT_MENTIONS(report.problems[3].what, "steps, options");
  write_report(report, scratch / "out", {"html", "md", "csv", "latex"});
  EXPECT_MENTIONS(read_file(scratch / "out/tables/fine_tuning.csv"), "rode");
  EXPECT_MENTIONS(read_file(scratch / "out/tables/bench_systems.tex"), "172.3");
}

TEST(OtherFiles, ThatAreNoEvaluationsHideNoRuns) {
  const Scratch scratch;
  put(scratch / "results.json", R"({"of": "something else"})");
  write_run(scratch / "a", {.optimizer = "rode"});
  put(scratch / "a/results.json", "[]");
  write_run(scratch / "b/c", {.optimizer = "adamw"});
  const FoundRuns found = find_runs({scratch.path(), scratch.path()});
  ASSERT_EQ(found.runs.size(), 2U);
  EXPECT_EQ(found.runs[0].run.at("optimizer"), "rode");
  EXPECT_EQ(found.runs[1].run.at("optimizer"), "adamw");
  ASSERT_EQ(found.problems.size(), 2U);  // each once
  for (const RunProblem& problem : found.problems) EXPECT_MENTIONS(problem.what, "neither from");
}

TEST(FineTuning, RowsOfDifferentProtocolsAreToldApart) {
  const Scratch scratch;
  Json rode = fake_evaluation("rode", 1, 80);
  Json adamw = fake_evaluation("adamw", 1, 70);
  const auto shown = [&] {
    put(scratch / "a/results.json", rode.dump());
    put(scratch / "b/results.json", adamw.dump());
    return to_markdown(make_report(find_runs({scratch.path()})));
  };
  rode["base_model"] = "Qwen3.5-9B";  // the other one does not tell
  adamw["options"]["lr"] = 1;         // own to each optimizer
  std::string text = shown();
  EXPECT_EQ(text.find("different protocols"), std::string::npos);
  EXPECT_MENTIONS(text, "**80.00**");
  adamw["base_model"] = "Qwen3-0.6B";
  adamw["steps"] = 10;
  text = shown();
  EXPECT_MENTIONS(text, "model is rode \"Qwen3.5-9B\", adamw \"Qwen3-0.6B\"");
  EXPECT_MENTIONS(text, "steps is rode 3000, adamw 10");
  EXPECT_EQ(text.find("**80.00**"), std::string::npos) << "the best of what cannot be compared";
}

}  // namespace
}  // namespace rode::lab
