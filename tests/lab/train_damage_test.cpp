// SPDX-License-Identifier: Apache-2.0
// Runs whose files were damaged, or are in use: what is good goes on, and nothing good is lost.
#include <cmath>
#include <csignal>
#include <functional>
#include <random>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lab/train/trainer.h"
#include "rode/safetensors.h"
#include "support.h"
#include "train_support.h"

namespace rode::lab {
namespace {

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
  EXPECT_MENTIONS(notes, "using the checkpoint before it");
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

// A checkpoint with something of it replaced, and a checksum that is right.
void rewrite(const std::filesystem::path& path,
             const std::function<void(std::vector<TensorEntry>&,
                                      std::map<std::string, std::string>&)>& change) {
  const auto file = SafetensorsFile::open(path);
  std::vector<TensorEntry> entries;
  for (const std::string& name : file.names()) entries.push_back({name, file.tensor(name)});
  auto metadata = file.metadata();
  change(entries, metadata);
  write_safetensors(path, entries, metadata);
}

void replace_text(std::string& text, const std::string& from, const std::string& to) {
  ASSERT_NE(text.find(from), std::string::npos) << text;
  text.replace(text.find(from), from.size(), to);
}

TEST(Training, AnyDamageToTheNewestCheckpointEndsInTheOneBefore) {
  using Entries = std::vector<TensorEntry>;
  using Metadata = std::map<std::string, std::string>;
  namespace fs = std::filesystem;
  const auto in_state = [](const char* from, const char* to) {
    return [=](const fs::path& path) {
      rewrite(path, [&](Entries&, Metadata& metadata) {
        replace_text(metadata.at("rode.train"), from, to);
      });
    };
  };
  const std::map<std::string, std::function<void(const fs::path&)>> damages = {
      {"30 kB of zeros",
       [](const fs::path& path) {
         std::string bytes = read_file(path);
         bytes.replace(bytes.size() / 3, 30'000, 30'000, '\0');
         write_file(path, bytes);
       }},
      {"cut", [](const fs::path& path) { fs::resize_file(path, fs::file_size(path) - 1); }},
      {"longer", [](const fs::path& path) { fs::resize_file(path, fs::file_size(path) + 1); }},
      {"empty", [](const fs::path& path) { write_file(path, ""); }},
      {"noise", [](const fs::path& path) { write_file(path, std::string(50'000, 'x')); }},
      {"a folder",
       [](const fs::path& path) {
         fs::remove(path);
         fs::create_directory(path);
       }},
      {"a link to nowhere",
       [](const fs::path& path) {
         fs::remove(path);
         fs::create_symlink("nowhere", path);
       }},
      {"the checkpoint of another step",
       [](const fs::path& path) {
         fs::copy_file(path.parent_path() / "step-00000003.safetensors", path,
                       fs::copy_options::overwrite_existing);
       }},
      {"a step beyond the end", in_state("\"step\":6", "\"step\":600")},
      {"a step that is none", in_state("\"step\":6", "\"step\":\"x\"")},
      {"a position in other data", in_state("\"size\":40", "\"size\":41")},
      {"no state of the run",
       [](const fs::path& path) {
         rewrite(path, [](Entries&, Metadata& metadata) { metadata.erase("rode.train"); });
       }},
      {"a weight that is missing",
       [](const fs::path& path) {
         rewrite(path, [](Entries& entries, Metadata&) {
           std::erase_if(entries, [](const TensorEntry& e) {
             return e.name.starts_with("param.") && e.name.ends_with("norm.weight");
           });
         });
       }},
      {"a weight of another shape",
       [](const fs::path& path) {
         rewrite(path, [](Entries& entries, Metadata&) {
           for (TensorEntry& entry : entries) {
             const std::int64_t n = entry.view.numel();
             if (entry.name.starts_with("param.")) entry.view.shape = Shape{n, 1, 1};
           }
         });
       }},
      {"a generator of another kind",
       [](const fs::path& path) {
         rewrite(path, [](Entries& entries, Metadata&) {
           for (TensorEntry& entry : entries) {
             if (entry.name == "rng.cpu") entry.view.shape = Shape{8};
           }
         });
       }},
  };
  const Scratch scratch;
  const SavedRun run(scratch);
  for (const auto& [name, damage] : damages) {
    SCOPED_TRACE(name);
    TrainOptions options = run.options;
    options.out = scratch / "damaged";
    fs::remove_all(options.out);
    fs::copy(run.options.out, options.out, fs::copy_options::recursive);
    const RunFolder folder(options.out);
    damage(folder.checkpoint(6));
    Noted noted;
    EXPECT_EQ(Trainer(options, noted.hooks()).run().status, TrainStatus::finished);
    EXPECT_MENTIONS(noted.text, "using the checkpoint before it");
    EXPECT_MENTIONS(noted.text, "resumed after step 3");
    EXPECT_TRUE(fs::exists(fs::symlink_status(folder.checkpoint(6).string() + ".bad")));
    expect_same(Left(options.out), Left(scratch / "whole"));
  }
}

TEST(Training, NoneOf200FlippedBitsOfTheNewestCheckpointIsUsed) {
  const Scratch scratch;
  const SavedRun run(scratch);
  const auto newest = run.folder().checkpoint(6);
  const std::string good = read_file(newest);
  const std::size_t header = 8 + static_cast<unsigned char>(good[0]) +
                             256 * static_cast<std::size_t>(static_cast<unsigned char>(good[1]));
  std::mt19937_64 draw(20240520);
  for (int flip = 0; flip < 200; ++flip) {
    const std::size_t within = flip % 2 == 0 ? header : good.size();
    const std::size_t byte = draw() % within;
    std::string bad = good;
    bad[byte] = static_cast<char>(bad[byte] ^ (1 << (draw() % 8)));
    write_file(newest, bad);
    Noted noted;
    {
      const Trainer trainer(run.options, noted.hooks());
    }
    EXPECT_MENTIONS(noted.text, "using the checkpoint before it") << "byte " << byte;
    EXPECT_TRUE(std::filesystem::remove(newest.string() + ".bad"));
  }
  write_file(newest, good);
  EXPECT_EQ(Trainer(run.options).run().status, TrainStatus::finished);
  expect_same(Left(run.options.out), Left(scratch / "whole"));
}

TEST(Training, TheOnlyCheckpointIsNotPassedOver) {
  const Scratch scratch;
  const SavedRun run(scratch);
  const RunFolder folder = run.folder();
  std::filesystem::remove(folder.checkpoint(3));
  std::filesystem::resize_file(folder.checkpoint(6), 1000);
  const std::string error = error_of([&] { const Trainer trainer(run.options); });
  EXPECT_MENTIONS(error, "there is no earlier checkpoint");
  EXPECT_MENTIONS(error, "--overwrite");
  EXPECT_TRUE(std::filesystem::exists(folder.checkpoint(6)));
}

TEST(Training, ACheckpointWithoutAChecksumIsUsedWithANote) {
  const Scratch scratch;
  const SavedRun run(scratch);
  const auto path = run.folder().checkpoint(6);
  std::string bytes = read_file(path);
  // Names of the same length: the file is then one of another writer.
  replace_text(bytes, "rode.checksum", "some.checksum");
  replace_text(bytes, "rode-xxh3-128:", "some-xxh3-128:");
  write_file(path, bytes);
  Noted noted;
  EXPECT_EQ(Trainer(run.options, noted.hooks()).run().status, TrainStatus::finished);
  EXPECT_MENTIONS(noted.text, "step-00000006.safetensors': has no checksum");
  EXPECT_MENTIONS(noted.text, "resumed after step 6");
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

}  // namespace
}  // namespace rode::lab
