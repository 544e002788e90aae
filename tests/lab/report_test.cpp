// SPDX-License-Identifier: Apache-2.0
// Reports on runs with known numbers: groups, tables, charts, files.
#include <cmath>

#include <gtest/gtest.h>

#include "lab/report/matrix_charts.h"
#include "lab/report/published.h"
#include "lab/report/tables.h"
#include "report_support.h"

namespace rode::lab {
namespace {

const Chart& chart_named(const NamedCharts& charts, const std::string& name) {
  for (const auto& [file, chart] : charts) {
    if (file == name) return chart;
  }
  throw std::out_of_range("no chart " + name);
}

TEST(Spread, IsTheSamples) {
  EXPECT_FALSE(spread_of({}));
  EXPECT_FALSE(spread_of({2})->deviation);
  const Spread spread = *spread_of({1, 2, 4});
  EXPECT_DOUBLE_EQ(spread.mean, 7.0 / 3);
  EXPECT_NEAR(*spread.deviation, std::sqrt(7.0 / 3), 1e-12);
}

TEST(Spread, DifferencesHaveWelchsErrorAndFreedom) {
  // Variances 4/3 of three and 2 of two: error sqrt(4/9 + 1), by hand.
  const Spread a{.mean = 5, .deviation = std::sqrt(4.0 / 3), .count = 3};
  const Spread b{.mean = 2, .deviation = std::sqrt(2.0), .count = 2};
  const Difference difference = welch(a, b);
  EXPECT_DOUBLE_EQ(difference.value, 3);
  EXPECT_NEAR(*difference.error, std::sqrt(13.0 / 9), 1e-12);
  EXPECT_NEAR(*difference.freedom, (169.0 / 81) / (16.0 / 81 / 2 + 1), 1e-12);
  EXPECT_FALSE(welch(a, {.mean = 1, .count = 1}).error);
  const Spread exact{.mean = 1, .deviation = 0, .count = 2};
  EXPECT_DOUBLE_EQ(*welch(exact, exact).error, 0);
  EXPECT_FALSE(welch(exact, exact).freedom);
}

TEST(Spread, DifferencesAreOverTheSeedsThatBothHave) {
  // Over all seeds the first would be ahead by 4; on each of the common ones it is behind by 1.
  const BySeed first = {{1, 3}, {2, 5}, {3, 10}};
  const BySeed second = {{2, 4}, {3, 9}, {4, 17}};
  const MatchedDifference found = *difference_over_seeds(first, second);
  EXPECT_DOUBLE_EQ(found.difference.value, 1);
  EXPECT_EQ(found.seeds, 2U);
  EXPECT_FALSE(found.difference.error);  // of two seeds
  EXPECT_FALSE(found.difference.freedom);
  const auto three = difference_over_seeds({{1, 1}, {2, 2}, {3, 3}}, {{1, 1}, {2, 2}, {3, 3}});
  EXPECT_NEAR(*three->difference.error, std::sqrt(2.0 / 3), 1e-12);
  EXPECT_FALSE(difference_over_seeds(first, {{7, 1}}));
}

TEST(Report, DifferencesOfRowsWithFewerSeedsAreOfTheirSeeds) {
  const Report report = report_of({{.optimizer = "rode", .seed = 1, .loss = 2},
                                   {.optimizer = "rode", .seed = 2, .loss = 1},
                                   {.optimizer = "rode-fixed", .seed = 1, .loss = 1.75},
                                   {.optimizer = "rode-fixed", .seed = 2, .status = "diverged"},
                                   {.optimizer = "rode-snr", .seed = 2, .status = "diverged"},
                                   {.optimizer = "muon-rms", .seed = 3, .loss = 7}},
                                  {.base = "rode"});
  const Table& table = table_named(report.tasks.at(0).tables, "differences");
  EXPECT_EQ(cell_of(table, 0, "final loss").shown(), "1.5000 ± 0.7071");
  EXPECT_EQ(cell_of(table, 1, "difference to rode").shown(), "-0.2500");  // of seed 1 alone
  EXPECT_EQ(cell_of(table, 1, "seeds in common").shown(), "1");
  for (const std::size_t row : {0U, 2U, 3U}) {
    EXPECT_EQ(cell_of(table, row, "difference to rode").shown(), "-") << row;
  }
}

TEST(Report, LeavesDivergedRunsOutOfTheMeansAndNamesThem) {
  const Report report = report_of({{.seed = 1, .loss = 1.0},
                                   {.seed = 2, .loss = 2.0},
                                   {.seed = 3, .loss = 9.0, .status = "diverged"},
                                   {.seed = 4, .status = "unfinished"},
                                   {.optimizer = "sgd", .loss = 7, .status = "diverged"}});
  const Table& results = report.tasks.at(0).tables.at(0);
  EXPECT_EQ(cell_of(results, 0, "final loss").shown(), "1.5000 ± 0.7071");
  EXPECT_EQ(cell_of(results, 0, "seeds").shown(), "4, 1 diverged, 1 unfinished");
  EXPECT_EQ(cell_of(results, 1, "final loss").shown(), "diverged");
  EXPECT_EQ(cell_of(results, 1, "global norm").shown(), "-");
  // Of each seed's, not of the mean loss.
  EXPECT_NEAR(*cell_of(results, 0, "final perplexity").value, (std::exp(1) + std::exp(2)) / 2,
              1e-9);
  ASSERT_EQ(report.not_finished.size(), 3U);
  EXPECT_MENTIONS(report.not_finished[0].what, "adamw seed 3: diverged at step 10");
  EXPECT_MENTIONS(report.not_finished[1].what, "seed 4: unfinished");
  const ChartSeries& loss = chart_named(report.tasks[0].charts, "validation_loss").series.at(0);
  ASSERT_EQ(loss.points.size(), 3U);
  EXPECT_NEAR(loss.points[0].y, 2.5, 1e-12);
  ASSERT_EQ(loss.diverged.size(), 1U);
  EXPECT_NEAR(loss.diverged[0].at(2).y, 9.0, 1e-12);
  const std::string html = to_html(report);
  EXPECT_MENTIONS(html, "1.5000 ± 0.7071");
  EXPECT_MENTIONS(html, ">adamw, diverged<");
  for (const char* outside : {"src=", "href=", "url("}) {
    EXPECT_EQ(html.find(outside), std::string::npos) << outside;
  }
}

TEST(Report, PrintsTheBestBoldAndOnlyWhereThereIsAChoice) {
  const Report report = report_of({{.optimizer = "a", .loss = 2, .norm = 5},
                                   {.optimizer = "b", .loss = 1, .norm = 9},
                                   {.optimizer = "c", .loss = 0.5, .status = "diverged"}});
  const Table& results = report.tasks.at(0).tables.at(0);
  EXPECT_FALSE(cell_of(results, 0, "final loss").best);
  EXPECT_TRUE(cell_of(results, 1, "final loss").best);  // c is lower, and diverged
  EXPECT_FALSE(cell_of(results, 1, "global norm").best);
  EXPECT_MENTIONS(to_markdown(results), "| b | **1.0000** |");
  EXPECT_MENTIONS(to_latex(results), "b & $\\mathbf{1.0000}$ &");
  EXPECT_MENTIONS(to_html(results), "<strong>1.0000</strong>");
  const Report one = report_of({{.optimizer = "a"}});
  EXPECT_EQ(to_markdown(one.tasks.at(0).tables.at(0)).find("**"), std::string::npos);
}

TEST(Report, GroupsByProtocolAndOptionsAndTakesSeedsAsReplicates) {
  const Report report = report_of({{.optimizer = "rode", .seed = 1, .loss = 2},
                                   {.optimizer = "rode", .seed = 1, .loss = 1, .lr = "0.01"},
                                   {.optimizer = "rode", .seed = 2, .loss = 3},
                                   {.optimizer = "rode", .seed = 2, .loss = 9},  // a copy
                                   {.optimizer = "adamw", .loss = 5},
                                   {.optimizer = "rode", .seed = 1, .loss = 4, .steps = 20},
                                   {.task = "other", .optimizer = "rode", .seed = 1, .loss = 8}});
  ASSERT_EQ(report.comparisons.size(), 3U);
  EXPECT_EQ(report.comparisons[0].name, "tiny-lm-10-steps");
  EXPECT_EQ(report.comparisons[1].name, "tiny-lm-20-steps");
  EXPECT_EQ(report.comparisons[2].name, "other");
  EXPECT_EQ(report.comparisons[1].protocol,
            "20 steps of 8 samples (the task has 10 steps), warm-up 2, cosine; seed 1");
  const auto& optimizers = report.comparisons[0].optimizers;
  ASSERT_EQ(optimizers.size(), 3U);
  EXPECT_EQ(optimizers[0].label, "rode lr=0.001");
  EXPECT_EQ(optimizers[1].label, "rode lr=0.01");
  EXPECT_EQ(optimizers[2].label, "adamw");
  EXPECT_DOUBLE_EQ(optimizers[0].of("final_loss")->mean, 2.5);
  ASSERT_EQ(report.problems.size(), 1U);
  EXPECT_MENTIONS(report.problems[0].what, "seed 2 of the same run");
  // The rates of one optimizer: its best in bold, and a curve.
  const Table& rates = table_named(report.tasks[0].tables, "rates");
  ASSERT_EQ(rates.rows.size(), 2U);
  EXPECT_TRUE(cell_of(rates, 1, "final loss").best);
  const Chart& chart = chart_named(report.tasks[0].charts, "rates");
  ASSERT_EQ(chart.series.size(), 1U);
  ASSERT_EQ(chart.series[0].points.size(), 2U);
  EXPECT_DOUBLE_EQ(chart.series[0].points[1].x, 0.01);
  EXPECT_DOUBLE_EQ(chart.series[0].points[1].y, 1);
  // Several tasks in one table.
  const Table& main = table_named(report.tables, "main_results");
  EXPECT_EQ(main.rows.size(), 4U);  // two of rode, adamw, rode where there is one
  EXPECT_EQ(cell_of(main, 3, "other: final loss").shown(), "8.0000");
  EXPECT_EQ(cell_of(main, 3, "tiny-lm-10-steps: final loss").shown(), "-");
  EXPECT_EQ(cell_of(table_named(report.tables, "final_norms"), 0, "tiny-lm-10-steps").shown(),
            "2.00 ± 0.00");
}

TEST(Report, KeepsScalesAndStartingWeightsApart) {
  FoundRuns found;
  for (const char* scale : {"", "tiny"}) {
    RunSummary& run = found.runs.emplace_back(fake_run({}));
    if (*scale != 0) run.run["task"]["scale"] = scale;
  }
  found.runs.emplace_back(fake_run({})).run["weights"] = {{"sha256", "00"}};
  found.runs.emplace_back(fake_run({})).run["extended"] = Json::array({{{"from", 5}, {"to", 10}}});
  const Report report = make_report(std::move(found));
  ASSERT_EQ(report.comparisons.size(), 4U);
  EXPECT_TRUE(report.problems.empty());
  EXPECT_MENTIONS(report.comparisons[2].protocol, "started from given weights");
  EXPECT_MENTIONS(report.comparisons[3].protocol, "extended from a shorter run");
  EXPECT_MENTIONS(report.comparisons[1].title, ", scale tiny");
  EXPECT_EQ(report.comparisons[1].name, "tiny-lm-tiny");
  EXPECT_EQ(report.comparisons[1].protocol.substr(0, 22), "scale tiny: 10 steps o");
  EXPECT_EQ(report.comparisons[2].name, "tiny-lm-10-steps-2");
}

TEST(Report, StudiesHaveDifferencesToTheirBaseBesideThePapers) {
  std::vector<FakeRun> fakes;
  const auto add = [&](const char* name, std::initializer_list<double> losses) {
    std::uint64_t seed = 0;
    for (const double loss : losses) {
      fakes.push_back({.optimizer = name, .seed = ++seed, .loss = loss});
    }
  };
  add("rode", {2.0, 2.2, 2.4});
  add("rode-no-ns", {3.0, 3.4, 3.8});
  add("rode-fixed-published", {1.75});
  add("muon-rms", {4.0, 4.0});
  const Report report = report_of(fakes);
  const Table& components = table_named(report.tasks.at(0).tables, "components");
  ASSERT_EQ(components.rows.size(), 3U);
  EXPECT_EQ(cell_of(components, 0, "difference to rode").shown(), "-");
  // Variances 0.04 and 0.16, three seeds each: sqrt(0.2 / 3).
  EXPECT_EQ(cell_of(components, 1, "difference to rode").shown(), "+1.2000 ± 0.2582");
  EXPECT_EQ(cell_of(components, 1, "paper: difference").shown(), "+0.3518");
  EXPECT_EQ(cell_of(components, 1, "paper: final loss").shown(), "3.1249 ± 0.0113");
  EXPECT_EQ(cell_of(components, 2, "difference to rode").shown(), "-0.2500");  // of seed 1
  EXPECT_EQ(cell_of(components, 2, "variant").shown(), "rode-fixed-published");
  const std::string notes = components.notes.at(1);
  for (const char* part : {"steps: 10 here, 4000 in the paper", "model.width: not given here",
                           "train.batch: 8 here, 128 in the paper", "lr 0.001 (0.001206)"}) {
    EXPECT_MENTIONS(notes, part);
  }
  const Table& intervention = table_named(report.tasks.at(0).tables, "intervention");
  EXPECT_EQ(cell_of(intervention, 1, "difference to muon-rms").shown(), "-2.2500");
  EXPECT_EQ(cell_of(intervention, 1, "paper: difference").shown(), "-0.050");
  EXPECT_EQ(cell_of(intervention, 1, "radius").shown(), "fixed");
  // Any other base, on demand; one that is not there is an error that names what is.
  const Report asked = report_of(fakes, {.base = "rode-no-ns"});
  const Table& differences = table_named(asked.tasks.at(0).tables, "differences");
  EXPECT_EQ(cell_of(differences, 0, "difference to rode-no-ns").shown(), "-1.2000 ± 0.2582");
  EXPECT_MENTIONS(error_of([&] { report_of(fakes, {.base = "lion"}); }), "rode-no-ns");
}

TEST(Report, DrawsRadiusAndAngleOfEveryMatrix) {
  EXPECT_EQ(parse_matrix_name("model.layers.3.self_attn.q_proj.weight").layer, "layer 3");
  EXPECT_EQ(parse_matrix_name("model.layers.3.self_attn.q_proj.weight").kind, "self_attn.q_proj");
  EXPECT_EQ(parse_matrix_name("layer1.0.conv2.weight").layer, "layer1.0");
  EXPECT_EQ(parse_matrix_name("layer1.0.downsample.0.weight").kind, "downsample.0");
  EXPECT_EQ(parse_matrix_name("fc.weight").layer, "");

  const Report report = report_of({{.optimizer = "rode"}, {.optimizer = "adamw"}});
  const TaskReport& task = report.tasks.at(0);
  std::vector<std::string> files;
  for (const auto& [file, grid] : task.grids) files.push_back(file);
  EXPECT_EQ(files, (std::vector<std::string>{"radius-rode", "angle-rode", "radius-adamw"}));
  const ChartGrid& radius = task.grids.at(0).second;
  ASSERT_EQ(radius.panels.size(), 2U);
  EXPECT_EQ(radius.panels[0].title, "q_proj");
  ASSERT_EQ(radius.panels[0].series.size(), 2U);
  EXPECT_EQ(radius.panels[0].series[1].name, "layer 1");
  EXPECT_DOUBLE_EQ(radius.panels[0].series[1].points.at(2).y, 3.0);
  EXPECT_DOUBLE_EQ(task.grids[1].second.panels[1].series[0].points.at(0).y, 0.02);
  // Over all matrices: radii double or triple, the geometric mean of that; angles only of RODE.
  const Chart& mean = chart_named(task.charts, "matrix_radius");
  ASSERT_EQ(mean.series.size(), 2U);
  EXPECT_NEAR(mean.series[0].points.at(2).y, std::sqrt(2.0 * 3.0), 1e-12);
  EXPECT_EQ(chart_named(task.charts, "matrix_angle").series.size(), 1U);
  EXPECT_NEAR(chart_named(task.charts, "matrix_radial").series.at(0).points.at(0).y, 0.01, 1e-12);
  EXPECT_THROW(chart_named(task.charts, "matrix_damping"), std::out_of_range);  // 1 everywhere
}

TEST(Report, DrawsCurvesAgainstTokensAndSeconds) {
  const Report report = report_of({{.optimizer = "rode"}});
  const NamedCharts& charts = report.tasks.at(0).charts;
  const auto last = [&](const char* name) {
    return chart_named(charts, name).series.at(0).points.back().x;
  };
  EXPECT_DOUBLE_EQ(last("validation_loss"), 10);
  EXPECT_DOUBLE_EQ(last("validation_loss_by_tokens"), 10 * 8 * 16);
  EXPECT_DOUBLE_EQ(last("validation_loss_by_seconds"), 5);
  EXPECT_DOUBLE_EQ(last("training_loss_by_seconds"), 4.5);  // between two evaluations
  EXPECT_EQ(last("update_norm"), 9);
  EXPECT_THROW(chart_named(charts, "gradient_norm"), std::out_of_range);  // not in these logs
}

TEST(Report, JudgesImagesByTheirBestAccuracy) {
  FoundRuns found;
  for (const double accuracy : {0.5, 0.75}) {
    const char* name = accuracy > 0.6 ? "rode" : "sgd";
    RunSummary& run = found.runs.emplace_back(fake_run({.optimizer = name, .loss = accuracy}));
    run.run["task"]["data"].erase("sequence");
    run.result["final_accuracy"] = accuracy - 0.25;
    run.result["best_accuracy"] = accuracy;
    for (Json& line : run.log) line["accuracy"] = accuracy;
  }
  const Report report = make_report(std::move(found), {.base = "sgd"});
  const Table& results = report.tasks.at(0).tables.at(0);
  EXPECT_EQ(cell_of(results, 1, "best accuracy %").shown(), "75.00");
  EXPECT_TRUE(cell_of(results, 1, "best accuracy %").best);
  EXPECT_TRUE(cell_of(results, 0, "final loss").best);
  EXPECT_THROW(cell_of(results, 0, "final perplexity"), std::out_of_range);
  const Table& differences = table_named(report.tasks.at(0).tables, "differences");
  EXPECT_EQ(cell_of(differences, 1, "difference to sgd").shown(), "+25.00");
  const NamedCharts& charts = report.tasks.at(0).charts;
  const ChartSeries& images = chart_named(charts, "validation_accuracy_by_images").series.at(1);
  EXPECT_DOUBLE_EQ(images.points.back().x, 10 * 8);
  EXPECT_DOUBLE_EQ(images.points.back().y, 75);
}

TEST(Report, FindsRunsAndNamesWhatIsWrongWithOne) {
  const Scratch scratch;
  for (const std::uint64_t seed : {1, 2, 10}) {
    write_run(scratch / ("x/rode-seed" + std::to_string(seed)),
              {.optimizer = "rode", .seed = seed, .loss = static_cast<double>(seed)});
  }
  write_run(scratch / "x/cut", {.optimizer = "cut"});
  write_file(scratch / "x/cut/log.jsonl", "{\"kind\":\"evaluation\"}\n");
  write_run(scratch / "x/wrong", {.optimizer = "wrong"});
  write_file(scratch / "x/wrong/run.json", "{\"task\": 3}");
  write_run(scratch / "x/odd", {.optimizer = "odd", .status = "lost"});
  FoundRuns found = find_runs({scratch.path(), scratch / "x"});  // the same folders twice
  ASSERT_EQ(found.runs.size(), 3U);
  EXPECT_EQ(found.runs[1].seed, 2U);
  EXPECT_EQ(found.runs[2].seed, 10U);  // by number, not by letter
  ASSERT_EQ(found.problems.size(), 3U);
  EXPECT_MENTIONS(found.problems[0].what, "line 1 has no step");
  EXPECT_MENTIONS(found.problems[1].what, "status is 'lost'");
  EXPECT_MENTIONS(found.problems[2].what, "has no task");
  EXPECT_MENTIONS(error_of([&] { find_runs({scratch / "nowhere"}); }), "is not a folder");
  const Report report = make_report(std::move(found));
  EXPECT_MENTIONS(to_markdown(report), "Runs that are left out");
  EXPECT_MENTIONS(error_of([] { make_report({}); }), "no run was found");
}

TEST(Report, WritesItsFilesAndRemovesWhatAnEarlierOneLeft) {
  const Scratch scratch;
  const Report first = report_of({{.optimizer = "rode"}, {.optimizer = "adamw"}});
  const auto files = write_report(first, scratch.path(), {"html", "md", "csv", "latex", "svg"});
  for (const std::string& file : files)
    EXPECT_TRUE(std::filesystem::exists(scratch / file)) << file;
  EXPECT_TRUE(std::filesystem::exists(scratch / "figures/tiny-lm/angle-rode.svg"));
  EXPECT_EQ(read_file(scratch / "tables/tiny-lm-results.csv").substr(0, 27),
            "optimizer,final loss,best l");
  EXPECT_EQ(read_file(scratch / "report.html"), to_html(first));
  EXPECT_EQ(read_json(scratch / "report.json")["tasks"][0]["optimizers"][0]["name"], "rode");
  write_file(scratch / "figures/tiny-lm/mine.svg", "kept");
  write_report(report_of({{.optimizer = "adamw"}}), scratch.path(), {"svg", "csv"});
  EXPECT_FALSE(std::filesystem::exists(scratch / "figures/tiny-lm/angle-rode.svg"));
  EXPECT_FALSE(std::filesystem::exists(scratch / "tables/tiny-lm-results.tex"));
  EXPECT_TRUE(std::filesystem::exists(scratch / "figures/tiny-lm/validation_loss.svg"));
  EXPECT_TRUE(std::filesystem::exists(scratch / "figures/tiny-lm/mine.svg"));
}

TEST(Published, HasEveryValueOfThePapersTables) {
  std::map<int, std::size_t> counts;
  for (const PublishedColumn& column : published().columns) {
    counts[column.table] += column.values.size();
  }
  const std::map<int, std::size_t> expected = {{1, 31}, {2, 31}, {3, 4}, {4, 9},
                                               {5, 30}, {6, 6},  {7, 80}};
  EXPECT_EQ(counts, expected);
  const auto value = [](int table, const char* task, const char* metric, const char* name) {
    return published().find({table}, task, metric, name).value();
  };
  EXPECT_EQ(value(1, "gpt2", "final_loss", "soap").mean, 2.9522);
  EXPECT_EQ(value(1, "resnet50-imagenet", "best_accuracy", "rode-snr").deviation, 0.09);
  EXPECT_EQ(value(2, "resnet50-cifar100", "weight_norm", "mars-m").mean, 23540.5);
  EXPECT_EQ(value(3, "gpt2", "final_loss", "muon-normproj").mean, 3.008);
  EXPECT_EQ(value(4, "qwen2-1.5b", "best_loss", "muon-rms").mean, 4.14465);
  EXPECT_EQ(value(5, "qwen3.5-9b", "math_500", "rode").mean, 54.53);
  EXPECT_EQ(value(6, "qwen2-114m", "final_loss", "rode-radial").deviation, 0.0023);
  EXPECT_EQ(value(7, "qwen2-114m", "throughput", "rode").mean, 0.72);
  EXPECT_EQ(value(6, "qwen2-114m", "final_loss", "rode-snr-published").mean, 2.7493);
  EXPECT_FALSE(published().find({1}, "resnet50-imagenet", "best_accuracy", "soap"));
}

TEST(Table, EveryFormatKeepsTextApart) {
  Table table{.name = "t", .title = "100% of a_b", .columns = {{"a|b"}, {"x", Better::low}}};
  table.rows = {{text_cell("p,\"q\" & <r> | _s_"), Cell{.value = -0.00001, .deviation = 0.5}},
                {text_cell("other"), Cell{.text = "diverged"}}};
  EXPECT_EQ(to_csv(table), "a|b,x,x sd\n\"p,\"\"q\"\" & <r> | _s_\",-1e-05,0.5\nother,diverged,\n");
  EXPECT_MENTIONS(to_markdown(table), "p,\"q\" & \\<r\\> \\| \\_s\\_ | 0.0000 ± 0.5000 |");
  EXPECT_MENTIONS(to_html(table), "p,&quot;q&quot; &amp; &lt;r&gt; | _s_");
  const std::string latex = to_latex(table);
  EXPECT_MENTIONS(latex, "100\\% of a\\_b");
  EXPECT_MENTIONS(latex, "\\& <r> | \\_s\\_ & $0.0000 \\pm 0.5000$ \\\\");
  EXPECT_MENTIONS(latex, "other & diverged \\\\");
}

}  // namespace
}  // namespace rode::lab
