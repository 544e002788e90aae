// SPDX-License-Identifier: Apache-2.0
// What task files share and derive: constants by name, scales, a vocabulary from the data.
#include <algorithm>
#include <array>
#include <memory>
#include <set>

#include <nlohmann/json.hpp>

#include "lab/images/image.h"
#include "lab/support.h"
#include "lab/task/constants.h"
#include "lab/task/model_size.h"
#include "lab/task/sources.h"
#include "lab/task/task.h"

namespace rode::lab {
namespace {

constexpr std::array kPaperTasks = {"gpt2", "qwen2-114m", "qwen2-1.5b", "resnet50-cifar100",
                                    "resnet50-imagenet"};

std::string value_of(const OptimizerSpec& spec, const std::string& key) {
  for (const auto& [name, value] : spec.settings) {
    if (name == key) return value;
  }
  return "(unset)";
}

TEST(TaskConstants, NameEveryOptionOfEveryOptimizer) {
  for (const std::string& name : task_names()) {
    const Task task = load_task(name);
    for (const OptimizerSpec& spec : task.optimizers) {
      for (const OptionInfo& option : Method::by_name(spec.optimizer).options()) {
        EXPECT_NE(value_of(spec, option.key), "(unset)")
            << "task " << name << ", [optimizers." << spec.name << "]: " << option.key
            << " is neither in the task's file nor in task/constants/paper.toml: a new default "
               "would change the task";
      }
    }
  }
}

TEST(TaskConstants, AreThePapers) {
  const Task gpt2 = load_task("gpt2");
  EXPECT_EQ(value_of(gpt2.optimizer("rode"), "nesterov"), "false");
  EXPECT_EQ(value_of(gpt2.optimizer("rode"), "radius"), "learned");
  EXPECT_EQ(value_of(gpt2.optimizer("rode"), "momentum"), "0.9");
  EXPECT_EQ(value_of(gpt2.optimizer("rode"), "reproject"), "guarded");
  EXPECT_EQ(value_of(gpt2.optimizer("rode-published"), "reproject"), "every");
  EXPECT_EQ(value_of(gpt2.optimizer("rode-snr"), "snr"), "true");
  EXPECT_EQ(value_of(gpt2.optimizer("rode-snr-published"), "snr"), "true");
  EXPECT_EQ(value_of(gpt2.optimizer("rode-fixed"), "radius"), "fixed");
  EXPECT_EQ(value_of(gpt2.optimizer("muon"), "scale"), "original");
  EXPECT_EQ(value_of(gpt2.optimizer("muon-rms"), "scale"), "rms");
  EXPECT_EQ(value_of(gpt2.optimizer("adamw"), "weight_decay"), "0.0009077");
  EXPECT_EQ(value_of(gpt2.optimizer("soap"), "betas"), "0.95,0.95");
  for (const OptimizerSpec& spec : load_task("qwen2-1.5b").optimizers) {
    EXPECT_EQ(value_of(spec, "rounding"), "nearest") << spec.name;
  }
}

const std::string kTask = R"(title = "A task"
constants = "paper"
[model]
kind = "gpt2"
layers = 3
width = 64
heads = 4
vocab_size = 64
positions = 64
[data]
kind = "tokens"
path = "text"
sequence = 64
[train]
epochs = 3
batch = 32
eval_interval = 1
routing = "language"
[optimizers.rode]
nesterov = true
source = "test"
[scale.tiny]
model.layers = 2
train.steps = 5
train.schedule = "constant"
)";

std::string message(const std::string& from, const std::string& to) {
  std::string text = kTask;
  text.replace(text.find(from), from.size(), to);
  return error_of([&] { (void)parse_task(text, "t", "t.toml"); });
}

TEST(TaskConstants, YieldToTheTasksOwn) {
  const Task task = parse_task(kTask, "t", "t.toml");
  EXPECT_EQ(value_of(task.optimizers[0], "nesterov"), "true");
  EXPECT_EQ(value_of(task.optimizers[0], "snr"), "false");
  EXPECT_MENTIONS(message("\"paper\"", "\"papers\""), "did you mean 'paper'");
}

TEST(TaskScales, ReplaceValues) {
  const Task task = parse_task(kTask, "t", "t.toml");
  const Task tiny = with_scale(task, "tiny");
  EXPECT_EQ(tiny.model.layers, 2);
  EXPECT_EQ(tiny.model.width, 64);
  EXPECT_EQ(tiny.train.steps, 5);
  EXPECT_EQ(tiny.train.epochs, 0);
  EXPECT_EQ(tiny.title, "A task, scale tiny");
  EXPECT_TRUE(tiny.scales.empty());
  // Values of a command line come last, and the scale is not forgotten.
  const Task set = with_settings(tiny, {{"model.layers", "1"}});
  EXPECT_EQ(set.model.layers, 1);
  EXPECT_EQ(set.scale, "tiny");
  EXPECT_EQ(to_json(with_scale(task, "")), to_json(task));
}

TEST(TaskScales, AreTriedWhenTheFileIsRead) {
  EXPECT_MENTIONS(message("model.layers = 2", "model.layer = 2"), "[scale.tiny]: unknown key");
  EXPECT_MENTIONS(message("model.layers = 2", "model.layers = 0"), "[scale.tiny]: ");
  EXPECT_MENTIONS(message("model.layers = 2", "optimizers.rode.lr = 2"), "'optimizers'");
  EXPECT_MENTIONS(message("model.layers = 2\ntrain.steps = 5\ntrain.schedule = \"constant\"\n", ""),
                  "is empty");
  EXPECT_MENTIONS(message("[scale.tiny]", "[scale.\"a b\"]"), "expected a name");
}

TEST(TaskScales, OfThePaperShrinkModelDataAndHorizon) {
  for (const char* name : kPaperTasks) {
    const Task task = load_task(name);
    const auto size = [](const Task& of) { return parameter_count(of.model); };
    const Task small = with_scale(task, "small");
    const Task tiny = with_scale(task, "tiny");
    EXPECT_LE(size(small), size(task)) << name;
    EXPECT_LT(size(tiny), size(small)) << name;
    const auto samples = [](const Task& of) {
      return (of.train.steps + of.train.epochs * std::max<std::int64_t>(1, of.data.train_samples)) *
             of.train.batch;
    };
    if (task.is_language()) {
      EXPECT_LT(samples(small) * small.data.sequence, samples(task) * task.data.sequence);
    }
    EXPECT_LT(samples(tiny), samples(small)) << name;
    EXPECT_EQ(tiny.optimizers.size(), task.optimizers.size());
    for (std::size_t i = 0; i < task.optimizers.size(); ++i) {
      EXPECT_EQ(tiny.optimizers[i].settings, task.optimizers[i].settings) << name;
    }
  }
}

TEST(TaskVocabulary, IsTheDatasWhereTheTaskLeavesItToThem) {
  const Scratch scratch;
  const Task large = load_task("qwen2-1.5b");
  EXPECT_EQ(parameter_count(large.model), 1'387'535'360);
  std::filesystem::create_directories(scratch / "fineweb");
  EXPECT_EQ(with_vocabulary_of_data(large, scratch.path()).model.vocab_size, 50257);
  write_token_info(scratch / "fineweb",
                   {.tokenizer = "qwen2", .vocab_size = 151936, .end_of_text = 1, .splits = {}});
  const Task other = with_vocabulary_of_data(large, scratch.path());
  EXPECT_EQ(other.model.vocab_size, 151936);
  EXPECT_EQ(parameter_count(other.model), 1'543'714'304);
  const Task fixed = with_settings(large, {{"model.vocab_from_data", "false"}});
  EXPECT_EQ(with_vocabulary_of_data(fixed, scratch.path()).model.vocab_size, 50257);
}

class CountedImages : public ImageSource {
 public:
  std::uint64_t size() const override { return 10; }
  std::int64_t classes() const override { return 10; }
  std::int64_t read(std::uint64_t index, Image&) const override {
    return static_cast<std::int64_t>(index);
  }
};

TEST(SpreadImages, TakesEveryPartOfTheSource) {
  const auto taken = [](std::uint64_t count) {
    const SpreadImages images(std::make_shared<CountedImages>(), count);
    std::vector<std::int64_t> labels;
    Image image;
    for (std::uint64_t i = 0; i < images.size(); ++i) labels.push_back(images.read(i, image));
    return labels;
  };
  EXPECT_EQ(taken(4), (std::vector<std::int64_t>{0, 2, 5, 7}));
  EXPECT_EQ(taken(10).size(), 10U);
  EXPECT_EQ(taken(20).back(), 9);
}

}  // namespace
}  // namespace rode::lab
