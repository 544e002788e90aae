// SPDX-License-Identifier: Apache-2.0
// Saved state continues bit for bit, and a file that does not belong changes nothing.
#include <algorithm>
#include <cstring>
#include <fstream>

#include <gtest/gtest.h>

#include "api/support.h"
#include "unit/safetensors_support.h"

namespace rode {
namespace {

using test::expect_error;
using test::expect_same;
using test::Model;
using test::Optimizer;
using test::Snapshot;
using test::Spec;
using test::TemporaryDirectory;

class Checkpoint : public test::EveryVariant {};
INSTANTIATE_TEST_SUITE_P(Optimizers, Checkpoint, testing::ValuesIn(test::variants()),
                         test::variant_name);

void copy_weights(Model& from, Model& to) {
  for (std::size_t i = 0; i < from.size(); ++i) {
    std::memcpy(to.value(i).view().data, from.value(i).bytes().data(),
                from.value(i).bytes().size());
  }
}

void continues(const Method& method, DType weights) {
  const TemporaryDirectory directory;
  Model whole(test::small_model(), weights), resumed(test::small_model(), weights);
  Optimizer first(whole.parameters(), method);
  whole.run(first, 7);
  first.save(directory / "s");
  copy_weights(whole, resumed);
  Optimizer second(resumed.parameters(), method);
  second.load(directory / "s");
  EXPECT_EQ(second.steps_done(), 7);
  expect_same(Snapshot(resumed, second), Snapshot(whole, first));
  whole.run(first, 5);
  resumed.run(second, 5);
  expect_same(Snapshot(resumed, second), Snapshot(whole, first));
}

TEST_P(Checkpoint, ContinuesBitForBit) { continues(GetParam().method, DType::f32); }

TEST_P(Checkpoint, ContinuesBitForBitWithStochasticRounding) {
  continues(GetParam().method.with({{"rounding", "stochastic"}, {"seed", "9"}}), DType::bf16);
}

TEST_P(Checkpoint, ContinuesBitForBitWithExactWeightsAndBf16State) {
  Settings settings{{"rounding", "exact"}};
  const std::string_view name = GetParam().method.name();
  if (name == "ademamix") settings.emplace_back("betas", "0.9,0.95,0.99");
  if (name != "soap") settings.emplace_back("state_dtype", "bf16");
  continues(GetParam().method.with(settings), DType::bf16);
}

TEST_P(Checkpoint, SavingChangesNothingAndTwoSavesAreTheSameBytes) {
  const TemporaryDirectory directory;
  Model model;
  Optimizer optimizer(model.parameters(), GetParam().method);
  model.run(optimizer, 3);
  const Snapshot before(model, optimizer);
  optimizer.save(directory / "a");
  optimizer.save(directory / "b");
  expect_same(Snapshot(model, optimizer), before);
  EXPECT_EQ(test::file_bytes(directory / "a"), test::file_bytes(directory / "b"));
}

// ---- Files that do not belong ---------------------------------------------------------

// A file saved by `saver`, loaded into `loader`: refused with these words, nothing changed.
void refused(const Method& saver, const std::vector<Spec>& saved, const Method& loader,
             const std::vector<Spec>& loading, std::initializer_list<std::string_view> parts) {
  const TemporaryDirectory directory;
  Model from(saved), to(loading);
  Optimizer first(from.parameters(), saver), second(to.parameters(), loader);
  from.run(first, 3);
  first.save(directory / "s");
  to.run(second, 2);
  const Snapshot before(to, second);
  expect_error([&] { second.load(directory / "s"); }, ErrorKind::state_mismatch, parts);
  expect_same(Snapshot(to, second), before);
}

TEST(CheckpointRefusal, AnotherOptimizersStateIsRefusedByName) {
  const auto model = test::small_model();
  refused(AdamWOptions{}, model, SgdOptions{}, model, {"'adamw'", "'sgd'"});
  refused(MuonOptions{}, model, MarsMOptions{}, model, {"'muon'", "'mars-m'"});
  refused(SoapOptions{}, model, AdamWOptions{}, model, {"'soap'", "'adamw'"});
}

TEST(CheckpointRefusal, AnotherVariantsStateIsRefusedByTheKeyThatDiffers) {
  const auto model = test::small_model();
  refused(RodeOptions{}, model, RodeOptions{.snr = true}, model, {"snr_norm"});
  refused(RodeOptions{.radius = Radius::fixed}, model, RodeOptions{}, model, {"radius"});
}

// Both keep one `momentum` per matrix, but with different meanings.
TEST(CheckpointRefusal, AnotherOptimizersStateIsRefusedEvenWithTheSameKeys) {
  const auto model = test::small_model();
  refused(MuonOptions{}, model, RodeOptions{}, model, {"muon", "rode"});
  refused(RodeOptions{}, model, MuonOptions{}, model, {"muon", "rode"});
  const std::vector<Spec> matrices{{"w", {4, 4}}};
  refused(SgdOptions{}, matrices, MuonOptions{}, matrices, {"sgd", "muon"});
}

TEST(CheckpointRefusal, VariantsOfOneOptimizerThatKeepTheSameStateMayExchangeIt) {
  const TemporaryDirectory directory;
  Model from, to;
  Optimizer first(from.parameters(), Method::by_name("muon"));
  from.run(first, 3);
  first.save(directory / "s");
  Optimizer second(to.parameters(), Method::by_name("muon-rms", {{"ns_steps", "3"}}));
  second.load(directory / "s");
  expect_same(test::state_of(second), test::state_of(first));
}

TEST(CheckpointRefusal, OtherParametersAreRefusedByName) {
  const auto model = test::small_model();
  auto more = model, fewer = model, reshaped = model, renamed = model;
  more.push_back({"h.2.weight", {4, 4}});
  fewer.erase(fewer.begin());
  reshaped[0].shape = {8, 12};
  renamed[0].name = "h.7.weight";
  for (const char* name : {"rode", "soap", "adafactor"}) {
    const Method method = Method::by_name(name);
    refused(method, more, method, model, {"h.2.weight"});
    refused(method, fewer, method, model, {"h.0.weight"});
    refused(method, reshaped, method, model, {"h.0.weight", "(12", "(8"});
    refused(method, renamed, method, model, {"h.7.weight"});
  }
}

TEST(CheckpointRefusal, AnElementTypeThatIsNoStorageIsRefusedWithBoth) {
  Model model;
  Optimizer optimizer(model.parameters(), RodeOptions{});
  model.run(optimizer, 2);
  std::vector<TensorEntry> entries = optimizer.state();
  entries[0].view.dtype = DType::i32;  // as many bytes
  const Snapshot before(model, optimizer);
  const auto bytes = serialize_safetensors(entries);
  const auto file = SafetensorsFile::parse(bytes, "made");
  expect_error([&] { optimizer.load_state(file); }, ErrorKind::state_mismatch,
               {"momentum", "I32", "F32"});
  expect_same(Snapshot(model, optimizer), before);
}

// Another `state_dtype` is another storage of the same numbers: int8_test.cpp has the third.
TEST(CheckpointStorage, Bf16StateLoadsAsFp32AndBack) {
  const TemporaryDirectory directory;
  Model model;
  const Method wide = RodeOptions{}, narrow = wide.with({{"state_dtype", "bf16"}});
  Optimizer first(model.parameters(), narrow), second(model.parameters(), wide);
  Optimizer third(model.parameters(), narrow);
  model.run(first, 3);
  first.save(directory / "narrow");
  second.load(directory / "narrow");
  second.save(directory / "wide");
  third.load(directory / "wide");
  expect_same(test::state_of(third), test::state_of(first));
}

TEST(CheckpointRefusal, TruncatedOrAbsentFilesChangeNothing) {
  const TemporaryDirectory directory;
  Model model;
  Optimizer optimizer(model.parameters(), RodeOptions{});
  model.run(optimizer, 2);
  optimizer.save(directory / "s");
  const std::string bytes = test::file_bytes(directory / "s");
  model.run(optimizer, 1);
  const Snapshot before(model, optimizer);
  for (const std::size_t length : {std::size_t{0}, std::size_t{7}, std::size_t{8}, std::size_t{100},
                                   bytes.size() / 2, bytes.size() - 1}) {
    std::ofstream(directory / "cut", std::ios::binary)
        .write(bytes.data(), static_cast<std::streamsize>(length));
    expect_error([&] { optimizer.load(directory / "cut"); }, ErrorKind::file, {"cut"});
    expect_same(Snapshot(model, optimizer), before);
  }
  expect_error([&] { optimizer.load(directory / "absent"); }, ErrorKind::file, {"absent"});
  EXPECT_THROW(optimizer.save(directory / "no_folder/s"), Error);
  expect_same(Snapshot(model, optimizer), before);
}

TEST(CheckpointRefusal, AStepCountThatIsNoneIsRefused) {
  Model model;
  Optimizer optimizer(model.parameters(), RodeOptions{});
  model.run(optimizer, 2);
  const Snapshot before(model, optimizer);
  for (const char* text : {"", "-1", "1.5", "x", "99999999999999999999"}) {
    const auto bytes = serialize_safetensors(optimizer.state(), {{"rode.step", text}});
    const auto file = SafetensorsFile::parse(bytes, "made");
    expect_error([&] { optimizer.load_state(file); }, ErrorKind::file, {"rode.step"});
    expect_same(Snapshot(model, optimizer), before);
  }
}

// ---- Parts of a state -----------------------------------------------------------------

TEST(PartialState, CopiesWhatIsThereAndReturnsTheNamesThatAreNot) {
  Model from, to;
  Optimizer first(from.parameters(), RodeOptions{}), second(to.parameters(), RodeOptions{});
  from.run(first, 3);
  to.run(second, 1);
  std::vector<TensorEntry> entries = first.state();
  std::vector<std::string> removed;
  std::erase_if(entries, [&](const TensorEntry& entry) {
    const bool gone = entry.name.find("h.1.weight") != std::string::npos ||
                      entry.name == "state.norm.weight.step";
    if (gone) removed.push_back(entry.name);
    return gone;
  });
  const auto before = test::state_of(second), saved = test::state_of(first);
  const auto file = SafetensorsFile::parse(serialize_safetensors(entries), "part");
  expect_error([&] { second.load_state(file); }, ErrorKind::state_mismatch, {removed.front()});
  EXPECT_EQ(test::state_of(second), before);
  std::vector<std::string> absent = second.load_state(file, false);
  std::ranges::sort(absent);
  std::ranges::sort(removed);
  EXPECT_EQ(absent, removed);
  for (const auto& [name, bytes] : test::state_of(second)) {
    const bool kept = std::ranges::find(removed, name) != removed.end();
    EXPECT_EQ(bytes, kept ? before.at(name) : saved.at(name)) << name;
  }
}

TEST(PartialState, AnUnknownEntryIsRefusedEvenThen) {
  Model model;
  Optimizer optimizer(model.parameters(), RodeOptions{});
  std::vector<TensorEntry> entries = optimizer.state();
  entries[0].name = "state.h.0.weight.momentun";
  const auto file = SafetensorsFile::parse(serialize_safetensors(entries), "made");
  expect_error([&] { optimizer.load_state(file, false); }, ErrorKind::state_mismatch,
               {"momentun", "nearest: 'state.h.0.weight.momentum'"});
}

TEST(PartialState, TensorsThatAreNotStateAreIgnored) {
  Model model;
  Optimizer optimizer(model.parameters(), RodeOptions{});
  std::vector<TensorEntry> entries = optimizer.state();
  entries.push_back({"param.h.0.weight", model.value(0).view()});
  const auto file = SafetensorsFile::parse(serialize_safetensors(entries), "made");
  EXPECT_TRUE(optimizer.load_state(file).empty());
}

}  // namespace
}  // namespace rode
