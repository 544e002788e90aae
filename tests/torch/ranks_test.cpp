// SPDX-License-Identifier: Apache-2.0
// Several processes: equal to one bit for bit, together in every refusal, and never left waiting.
#include "ranks.h"

#include <csignal>

#include "core/checksum.h"
#include "support.h"

namespace rode::torch {
namespace {

constexpr int kSteps = 20;

// Matrices, one of them with gaps in memory, a batch of experts, a table that is long enough to be
// divided, and a vector.
struct Mixed : nn::Module {
  explicit Mixed(bool small) {
    add("layers.0.attention", wave({24, 16}, 1));
    add("norm", wave({7}, 2));
    if (small) return;
    add("layers.0.mlp", wave({40, 16}, 3));
    add("layers.1.mlp", wave({16, 24}, 4).t());
    add("layers.1.experts", wave({4, 12, 8}, 5));
    add("wte", wave({300, 64}, 6));
  }
  // Torch takes no dots in names.
  void add(std::string name, const Tensor& value) {
    std::ranges::replace(name, '.', '_');
    register_parameter(name, value);
  }
};

const std::vector<std::pair<std::string, Settings>>& methods() {
  static const std::vector<std::pair<std::string, Settings>> all = {
      {"rode", {}},   {"rode-snr", {}}, {"muon", {{"splits", "*attention=2"}}},
      {"mars-m", {}}, {"soap", {}},     {"adamw", {{"weight_decay", "0.1"}}}};
  return all;
}

std::unique_ptr<EngineOptimizer> make(const Mixed& model, const std::string& name,
                                      const Settings& settings, const ProcessGroup& group = {}) {
  if (name == "muon") {  // with splits, which the group of the rest may not have
    const MuonOptions defaults({}, {.route = Route::language});
    auto groups = param_groups(model, defaults);
    static_cast<MuonOptions&>(groups.front().options()).splits = "*attention=2";
    return std::make_unique<Muon>(groups, defaults, group);
  }
  return make_optimizer(model, Method::by_name(name, settings), {.route = Route::language}, {},
                        group);
}

void train(const Mixed& model, EngineOptimizer& optimizer, int from, int to) {
  for (int t = from; t < to; ++t) {
    set_grads(model.parameters(), t);
    optimizer.step(1.0 / (1 + t));
  }
}

std::string digest(const Mixed& model) {
  Checksum sum;
  for (const Tensor& p : model.parameters()) {
    const Tensor host = p.detach().contiguous();
    sum.add({static_cast<const std::byte*>(host.const_data_ptr()), host.nbytes()});
  }
  return sum.digits();
}

std::string label(bool small, const std::string& name) {
  return (small ? "small " : "mixed ") + name;
}

// ---- Equal to one process ---------------------------------------------------------------------

const AddScenario kTrains("trains", [](const RankProcess& process) {
  const ProcessGroup group = meet(process.meeting);
  for (const bool small : {false, true}) {
    for (const auto& [name, settings] : methods()) {
      const Mixed model(small);
      const auto optimizer = make(model, name, settings, group);
      const std::int64_t calls = group->calls();
      train(model, *optimizer, 0, kSteps);
      process.write(label(small, name), digest(model));
      process.write(label(small, name) + " calls", std::to_string(group->calls() - calls));
      process.write(label(small, name) + " state",
                    std::to_string(optimizer->engine().state_bytes()));
    }
  }
});

class ManyProcesses : public testing::TestWithParam<int> {};

TEST_P(ManyProcesses, StepAsOneDoesBitForBitAndShareTheState) {
  const RankFolder folder;
  const int size = GetParam();
  const auto reports = run_ranks("trains", {.size = size}, folder);
  for (const bool small : {false, true}) {
    for (const auto& [name, settings] : methods()) {
      const Mixed model(small);
      const std::string start = digest(model), key = label(small, name);
      const auto optimizer = make(model, name, settings);
      train(model, *optimizer, 0, kSteps);
      ASSERT_NE(digest(model), start);
      double sum = 0, least = 1e9;
      for (const RankReport& report : reports) {
        ASSERT_EQ(report.status, 0) << report["error"];
        EXPECT_EQ(report[key], digest(model)) << key;
        // One sum, and one message of weights.
        EXPECT_EQ(report[key + " calls"], std::to_string(size == 1 ? 0 : 2 * kSteps));
        const double own = std::stod(report[key + " state"]);
        sum += own;
        least = std::min(least, own);
      }
      const auto whole = static_cast<double>(optimizer->engine().state_bytes());
      EXPECT_NEAR(sum, whole, 0.01 * whole) << key;
      if (size != 4) continue;
      EXPECT_EQ(least == 0, small) << key << ": of the two tensors, two processes own nothing";
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Sizes, ManyProcesses, testing::Values(1, 2, 4));

// ---- Archives ---------------------------------------------------------------------------------

std::string file_of(const std::filesystem::path& folder, const std::string& what,
                    const std::string& name) {
  return (folder / (name + "." + what)).string();
}

void continue_from(const std::filesystem::path& folder, const std::string& name,
                   const Settings& settings, const ProcessGroup& group, std::string& out) {
  Mixed model(false);
  ::torch::serialize::InputArchive weights;
  weights.load_from(file_of(folder, "weights", name));
  model.load(weights);
  const auto optimizer = make(model, name, settings, group);
  ::torch::load(*optimizer, file_of(folder, "optimizer", name));
  EXPECT_EQ(optimizer->steps_done(), kSteps / 2);
  train(model, *optimizer, kSteps / 2, kSteps);
  out = digest(model);
}

const AddScenario kSaves("saves", [](const RankProcess& process) {
  const ProcessGroup group = meet(process.meeting);
  for (const auto& [name, settings] : methods()) {
    const Mixed model(false);
    const auto optimizer = make(model, name, settings, group);
    train(model, *optimizer, 0, kSteps / 2);
    ::torch::serialize::OutputArchive archive, weights;
    if (optimizer->save_consolidated(archive)) {
      archive.save_to(file_of(process.folder, "optimizer", name));
      model.save(weights);
      weights.save_to(file_of(process.folder, "weights", name));
    }
    process.write(name + " refusal", error_of([&] {
                    ::torch::serialize::OutputArchive own;
                    optimizer->save(own);
                  }));
    train(model, *optimizer, kSteps / 2, kSteps);
    process.write(name, digest(model));
  }
});

const AddScenario kContinues("continues", [](const RankProcess& process) {
  const ProcessGroup group = meet(process.meeting);
  for (const auto& [name, settings] : methods()) {
    std::string found;
    continue_from(process.folder, name, settings, group, found);
    process.write(name, found);
  }
});

TEST(ManyProcessesArchive, LoadsOnAnyNumberOfProcesses) {
  const RankFolder folder;
  const auto saved = run_ranks("saves", {.size = 4}, folder);
  ASSERT_EQ(saved[0].status, 0) << saved[0]["error"];
  const auto continued = run_ranks("continues", {.size = 2}, folder);
  for (const auto& [name, settings] : methods()) {
    EXPECT_TRUE(holds(saved[1][name + " refusal"], "call save_consolidated()"));
    for (const RankReport& report : continued) {
      EXPECT_EQ(report[name], saved[0][name]) << name << report["error"];
    }
    std::string alone;
    continue_from(folder.path, name, settings, {}, alone);
    EXPECT_EQ(alone, saved[0][name]) << name;
  }
}

// ---- Refused together -------------------------------------------------------------------------

const AddScenario kRefuses("refuses", [](const RankProcess& process) {
  const ProcessGroup group = meet(process.meeting);
  const bool odd = process.meeting.rank == 1;
  const Mixed model(false);
  const auto optimizer = make(model, "rode", {}, group);
  train(model, *optimizer, 0, 2);
  const std::string before = digest(model);
  const std::vector<Tensor> all = model.parameters();
  const auto attempt = [&](const std::string& what, const std::function<void()>& spoil,
                           double multiplier = 1) {
    set_grads(all, 2);
    spoil();
    process.write(what, error_of([&] { optimizer->step(multiplier); }));
    process.write(what + " changed", digest(model) == before ? "no" : "yes");
  };
  for (std::size_t i = 0; i < all.size(); ++i) {  // whoever owns it
    attempt("nan " + std::to_string(i), [&] {
      if (odd) all[i].mutable_grad().flatten()[0].fill_(NAN);
    });
  }
  attempt("absent", [&] {
    if (odd) all[0].mutable_grad().reset();
  });
  attempt("shape", [&] {
    if (odd) all[0].mutable_grad() = at::zeros({3});
  });
  attempt("multiplier", [] {}, odd ? 0.5 : 1);
  process.write("steps", std::to_string(optimizer->steps_done()));
  optimizer->set_on_non_finite(OnBadGradient::skip);
  const Tensor kept = all[0].detach().clone();
  attempt("skip", [&] {
    if (odd) all[0].mutable_grad()[0].fill_(INFINITY);
  });
  process.write("skipped", same_bits(all[0], kept) ? "yes" : "no");
  process.write("digest", digest(model));
  process.write("options", error_of([&] {
                  make(model, "rode", odd ? Settings{{"lr", "0.5"}} : Settings{}, group);
                }));
  process.write("model", error_of([&] { make(Mixed(odd), "rode", {}, group); }));
  process.write("made", error_of([&] { make(model, "rode", {}, group); }));
});

TEST(ManyProcessesRefuse, TogetherAndChangeNothing) {
  const RankFolder folder;
  const auto reports = run_ranks("refuses", {.size = 2}, folder);
  for (const RankReport& report : reports) {
    ASSERT_EQ(report.status, 0) << report["error"];
    for (const int i : {0, 1, 2, 3, 4, 5}) {
      const std::string key = "nan " + std::to_string(i);
      EXPECT_TRUE(holds(report[key], "holds NaN or Inf")) << report[key];
      EXPECT_TRUE(holds(report[key], "on rank 1; nothing was changed on any rank")) << report[key];
      EXPECT_EQ(report[key + " changed"], "no");
    }
    EXPECT_TRUE(holds(report["absent"], "present on 1 ranks and absent on 1")) << report["absent"];
    EXPECT_TRUE(holds(report["multiplier"], "options of rank 1 differ")) << report["multiplier"];
    for (const char* key : {"absent", "shape", "multiplier"}) {
      EXPECT_EQ(report[std::string(key) + " changed"], "no") << key;
    }
    EXPECT_EQ(report["steps"], "2");
    EXPECT_EQ(report["skip"], "");
    EXPECT_EQ(report["skip changed"], "yes");
    EXPECT_EQ(report["skipped"], "yes");
    EXPECT_TRUE(holds(report["options"], "group 0: lr = 0.5")) << report["options"];
    EXPECT_TRUE(holds(report["model"], "rank 1 has 2 parameters, rank 0 6")) << report["model"];
    EXPECT_EQ(report["made"], "");
  }
  EXPECT_EQ(reports[0]["digest"], reports[1]["digest"]);
  EXPECT_TRUE(holds(reports[0]["shape"], "rank 1 could not step")) << reports[0]["shape"];
  EXPECT_TRUE(holds(reports[1]["shape"], "expected a dense one like the parameter"));
}

// ---- Ranks that end or never come -------------------------------------------------------------

const AddScenario kDies("dies", [](const RankProcess& process) {
  const ProcessGroup group = meet(process.meeting);
  const Mixed model(false);
  const auto optimizer = make(model, "rode", {}, group);
  train(model, *optimizer, 0, 2);
  // The last but one: rank 0, which keeps the store, where there are two.
  if (process.meeting.rank == process.meeting.size - 2) ::raise(SIGKILL);
  const auto began = std::chrono::steady_clock::now();
  process.write("said", error_of([&] { train(model, *optimizer, 2, 4); }));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  process.write("seconds", std::to_string(took.count()));
});

TEST(ManyProcessesFault, OfARankThatIsKilledIsNamedByTheOthers) {
  const RankFolder folder;
  const auto reports = run_ranks("dies", {.size = 3, .timeout_s = 30}, folder);
  EXPECT_EQ(reports[1].status, 128 + SIGKILL);
  for (const std::size_t rank : {0, 2}) {
    ASSERT_EQ(reports[rank].status, 0) << reports[rank]["error"];
    EXPECT_TRUE(holds(reports[rank]["said"], "rank 1 of 3 does not answer"))
        << reports[rank]["said"];
    EXPECT_LT(std::stod(reports[rank]["seconds"]), 15);
  }
}

TEST(ManyProcessesFault, OfTheRankThatKeepsTheStoreIsNamedToo) {
  const RankFolder folder;
  const auto reports = run_ranks("dies", {.size = 2, .timeout_s = 30, .port = free_port()}, folder);
  EXPECT_EQ(reports[0].status, 128 + SIGKILL);
  ASSERT_EQ(reports[1].status, 0) << reports[1]["error"];
  EXPECT_TRUE(holds(reports[1]["said"], "rank 0")) << reports[1]["said"];
  EXPECT_LT(std::stod(reports[1]["seconds"]), 15);
}

// ---- Sums that are on their way -----------------------------------------------------------------

const AddScenario kBegins("begins", [](const RankProcess& process) {
  const ProcessGroup group = meet(process.meeting);
  std::vector<Tensor> tensors;
  for (const std::int64_t size : {3, 1000, 70000}) {
    tensors.push_back(at::full({size}, process.meeting.rank + 1, at::kFloat));
  }
  const std::int64_t calls = group->calls(), bytes = group->bytes();
  for (const Tensor& tensor : tensors) group->begin_add(tensor);
  group->finish();
  group->finish();  // of nothing
  bool right = true;
  for (const Tensor& tensor : tensors) right = right && at::all(tensor == 6).item<bool>();
  process.write("right", right ? "yes" : "no");
  process.write("calls", std::to_string(group->calls() - calls));
  process.write("bytes", std::to_string(group->bytes() - bytes));
  if (process.meeting.rank == 1) {
    group->leave("the disk is full");
    return;
  }
  group->begin_add(tensors[0]);
  group->begin_add(tensors[1]);
  process.write("said", error_of([&] { group->finish(); }));
});

TEST(ManyProcessesAdd, WhileTheyWorkAndLearnWhyOneOfThemEnds) {
  const RankFolder folder;
  const auto reports = run_ranks("begins", {.size = 3}, folder);
  for (const RankReport& report : reports) {
    ASSERT_EQ(report.status, 0) << report["error"];
    EXPECT_EQ(report["right"], "yes");
    EXPECT_EQ(report["calls"], "3");
    EXPECT_EQ(report["bytes"], std::to_string(4 * 71003));
  }
  for (const std::size_t rank : {0, 2}) {
    EXPECT_TRUE(holds(reports[rank]["said"], "rank 1 has ended: the disk is full"))
        << reports[rank]["said"];
  }
}

TEST(ManyProcessesFault, OfARankThatNeverComesIsNamed) {
  const RankFolder folder;
  const auto reports = run_ranks("trains", {.size = 3, .started = {0, 2}, .timeout_s = 2}, folder);
  for (const std::size_t rank : {0, 2}) {
    EXPECT_EQ(reports[rank].status, 1);
    EXPECT_TRUE(holds(reports[rank]["error"], "rank 1 of 3 has not joined"))
        << reports[rank]["error"];
  }
  const auto alone =
      run_ranks("trains", {.size = 2, .started = {1}, .timeout_s = 2, .port = free_port()}, folder);
  EXPECT_TRUE(holds(alone[1]["error"], "could not reach rank 0 at 127.0.0.1")) << alone[1]["error"];
}

}  // namespace
}  // namespace rode::torch
