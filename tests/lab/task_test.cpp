// SPDX-License-Identifier: Apache-2.0
// Task files: those of the build, and every kind of mistake with its line.
#include "lab/task/task.h"

#include <memory>
#include <regex>

#include <nlohmann/json.hpp>

#include "lab/base/name.h"
#include "lab/support.h"
#include "lab/task/model_size.h"
#include "lab/task/sources.h"

namespace rode::lab {
namespace {

const std::string kTask = R"(title = "A task"
[model]
kind = "qwen2"
layers = 2
width = 64
heads = 4
kv_heads = 2
mlp_width = 176
vocab_size = 64
[data]
kind = "tiny-lm"
sequence = 64
train_samples = 100
eval_samples = 10
[train]
steps = 300
batch = 32
accumulate = 4
warmup = 30
eval_interval = 30
routing = "language"
[optimizers.rode]
lr = 1e-2
nesterov = true
source = "test"
[optimizers.second]
optimizer = "adamw"
betas = [0.9, 0.99]
source = "test"
)";

std::string replaced(const std::string& from, const std::string& to) {
  std::string text = kTask;
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

std::string message(const std::string& from, const std::string& to) {
  return error_of([&] { (void)parse_task(replaced(from, to), "t", "t.toml"); });
}

TEST(Task, ReadsWhatIsAddedToItsSchedule) {
  const std::string tail =
      "warmup = 30\nschedule = \"wsd\"\ncooldown = 0.1\ncooldown_form = \"power\"\n"
      "cooldown_power = 3\nmomentum_warmup = 50\nmomentum_start = 0.8\naverage_tail = 0.25";
  const Task task = parse_task(replaced("warmup = 30", tail), "t", "t.toml");
  const Task again = parse_task(to_toml(task), "t", "again");
  for (const TrainSpec& train : {task.train, again.train}) {
    EXPECT_EQ(train.schedule, "wsd");
    EXPECT_EQ(train.cooldown, 0.1);
    EXPECT_EQ(train.cooldown_form, "power");
    EXPECT_EQ(train.cooldown_power, 3);
    EXPECT_EQ(train.momentum_warmup, 50);
    EXPECT_EQ(train.momentum_start, 0.8);
    EXPECT_EQ(train.average_tail, 0.25);
  }
  // Not written where they do not act: runs of earlier versions have none of them.
  const std::string plain = to_toml(parse_task(kTask, "t", "t.toml"));
  for (const char* word : {"cooldown", "momentum_start", "average_tail"}) {
    EXPECT_EQ(plain.find(word), std::string::npos) << word;
  }
  const auto refused = [](const std::string& line) { return message("warmup = 30", line); };
  EXPECT_MENTIONS(refused("cooldown = 0.1"), "schedule 'wsd'");
  EXPECT_MENTIONS(refused("schedule = \"wsd\"\ncooldown = 0"), "cooldown");
  EXPECT_MENTIONS(refused("schedule = \"wsd\"\ncooldown_power = 2"), "cooldown_form 'power'");
  EXPECT_MENTIONS(refused("momentum_start = 0.5"), "momentum_warmup");
  EXPECT_MENTIONS(refused("average_tail = 1.5"), "average_tail");
  EXPECT_MENTIONS(refused("warmup = 300\nschedule = \"wsd\""), "fewer warm-up");
}

TEST(Task, IsReadWithDefaults) {
  const Task task = parse_task(kTask, "t", "t.toml");
  EXPECT_EQ(task.model.kind, "qwen2");
  EXPECT_EQ(task.model.kv_heads, 2);
  EXPECT_EQ(task.train.accumulate, 4);
  EXPECT_EQ(task.train.schedule, "cosine");
  EXPECT_EQ(task.train.route, Route::language);
  ASSERT_EQ(task.optimizers.size(), 2U);
  EXPECT_EQ(task.optimizers[0].name, "rode");
  EXPECT_EQ(task.optimizer("second").optimizer, "adamw");
  EXPECT_EQ(task.optimizer("second").settings, (Settings{{"betas", "0.9,0.99"}}));
  EXPECT_MENTIONS(error_of([&] { (void)task.optimizer("rod"); }), "did you mean 'rode'");
}

TEST(Task, NamesFileLineKeyAndTheNearest) {
  const std::string text = message("warmup = 30", "warm_up = 30");
  EXPECT_MENTIONS(text, "t.toml");
  EXPECT_MENTIONS(text, "line 19");
  EXPECT_MENTIONS(text, "'warm_up' in [train]");
  EXPECT_MENTIONS(text, "did you mean 'warmup'");
  EXPECT_MENTIONS(message("[data]", "[date]"),
                  "'date' is not a key at the top, and 'data' is missing");
  EXPECT_MENTIONS(message("[data]", "[others]"), "'data' is missing at the top; add it");
  EXPECT_MENTIONS(message("[optimizers.rode]", "[optimisers.rode]"), "unknown key 'optimisers'");
}

TEST(Task, RefusesWrongValuesWithTheirLine) {
  EXPECT_MENTIONS(message("steps = 300", "steps = -3"), "line 16: 'steps' is -3");
  EXPECT_MENTIONS(message("steps = 300", "steps = 1.5"), "a whole number");
  EXPECT_MENTIONS(message("batch = 32", "batch = \"many\""),
                  "line 17: 'batch' is \"many\" in [train]");
  EXPECT_MENTIONS(message("batch = 32", "batch = \"32\""), "'batch' is \"32\"");
  EXPECT_MENTIONS(message("batch = 32", "batch = [1, \"x\"]"), "'batch' is [1, \"x\"]");
  EXPECT_MENTIONS(message("batch = 32", "batch = 1979-05-27"), "'batch' is a date");
  EXPECT_MENTIONS(message("\"qwen2\"", "\"qwen\""), "did you mean 'qwen2'");
  EXPECT_MENTIONS(message("\"language\"", "\"languages\""), "did you mean 'language'");
  EXPECT_MENTIONS(message("accumulate = 4", "accumulate = 5"), "divisor of the batch");
  EXPECT_MENTIONS(message("kv_heads = 2", "kv_heads = 3"), "divisor of the 4 heads");
  EXPECT_MENTIONS(message("heads = 4", "heads = 5"), "divisor of the width");
  EXPECT_MENTIONS(message("warmup = 30", "warmup = 300"), "fewer warm-up steps");
  EXPECT_MENTIONS(message("steps = 300", "epochs = 3\nsteps = 300"), "not both");
  EXPECT_MENTIONS(message("steps = 300\n", ""), "steps or epochs");
  EXPECT_MENTIONS(message("\"tiny-lm\"\nsequence = 64", "\"tiny-vision\""), "both for language");
  EXPECT_MENTIONS(message("batch = 32", "batch = "), "line 17");
  EXPECT_MENTIONS(message("[optimizers.second]", "[}ptimizers.second]"), "line 26");
  EXPECT_MENTIONS(message("batch = 32", "b\u0281atch = 32"), "line 17: a non-ASCII character");
  EXPECT_MENTIONS(message("batch = 32", "batch = 3c'\u0281'"), "line 17: a non-ASCII character");
  EXPECT_EQ(message("\"A task\"", "\"\"\"\\\"\"\"é\"\"\"\"\"  # é\n"), "");
}

TEST(Task, HasALimitForEverySize) {
  for (const char* key :
       {"layers = 2", "width = 64", "heads = 4", "kv_heads = 2", "mlp_width = 176",
        "vocab_size = 64", "sequence = 64", "train_samples = 100", "eval_samples = 10",
        "steps = 300", "batch = 32", "accumulate = 4", "warmup = 30", "eval_interval = 30"}) {
    const std::string name = std::string(key).substr(0, std::string_view(key).find(' '));
    const std::string text = message(key, name + " = 9000000000000000000");
    EXPECT_MENTIONS(text, "'" + name + "' is 9000000000000000000");
    EXPECT_MENTIONS(text, "expected a whole number from ");
  }
  EXPECT_MENTIONS(message("layers = 2", "layers = 1000000000"), "from 1 to 1000");
  EXPECT_MENTIONS(message("width = 64", "width = 1048576"), "from 1 to 131072");
  EXPECT_MENTIONS(message("layers = 2\nwidth = 64", "layers = 1000\nwidth = 131072"),
                  "parameters; expected at most 1000000000000");
  std::string large = replaced("sequence = 64", "sequence = 1048576");
  large.replace(large.find("batch = 32"), 10, "batch = 65536");
  EXPECT_MENTIONS(error_of([&] { (void)parse_task(large, "t", "t.toml"); }),
                  "a batch of 65536 times 1048576 tokens; expected at most 4294967296");
}

TEST(Task, TakesNamesThatStayInTheirFolders) {
  for (const char* name : {"../../esc", "a/b", ".hidden", "-flag", "", "a b", "a\\tb"}) {
    const std::string text =
        message("[optimizers.second]", std::string("[optimizers.\"") + name + "\"]");
    EXPECT_MENTIONS(text, "expected a name of 1 to 100 letters");
    EXPECT_NE(error_of([&] { (void)parse_task(kTask, name, "t.toml"); }), "") << name;
  }
  EXPECT_NE(message("[optimizers.second]", "[optimizers.\"ö\"]"), "");
  EXPECT_NE(error_of([&] { (void)parse_task(kTask, "ö", "t.toml"); }), "");
  const std::string tokens = "\"tokens\"\npath = \"text\"";
  for (const char* path : {"/etc", "../x", "a/../b", "a//b", ""}) {
    EXPECT_MENTIONS(message("\"tiny-lm\"", std::string("\"tokens\"\npath = \"") + path + "\""),
                    "'path' is");
  }
  EXPECT_MENTIONS(message("\"tiny-lm\"", tokens + "\nvalid = \"../x\""), "'valid' is '../x'");
  EXPECT_FALSE(is_name(std::string(101, 'a')));
  EXPECT_TRUE(is_name("rode-no-ns_1.5+x"));
  const Scratch scratch;
  write_file(scratch / "...toml", kTask);  // whose stem is ".."
  EXPECT_MENTIONS(error_of([&] { (void)load_task((scratch / "...toml").string()); }), "'..'");
}

TEST(Task, HasTheEngineCheckTheOptimizers) {
  const std::string key = message("nesterov = true", "nestorov = true");
  EXPECT_MENTIONS(key, "line 24");
  EXPECT_MENTIONS(key, "nesterov");
  EXPECT_MENTIONS(message("lr = 1e-2", "lr = -1.0"), "line 23");
  EXPECT_MENTIONS(message("\"adamw\"", "\"adam\""), "adamw");
  EXPECT_MENTIONS(message("source = \"test\"\n", ""), "'source' is missing");
}

TEST(Tasks, OfTheBuildAreAllValid) {
  const auto names = task_names();
  EXPECT_GE(names.size(), 9U);
  for (const std::string& name : names) {
    const Task task = load_task(name);
    EXPECT_EQ(task.name, name);
    EXPECT_FALSE(to_json(task).dump().empty());
  }
  EXPECT_MENTIONS(error_of([] { (void)load_task("tiny-ml"); }), "did you mean 'tiny-lm'");
}

TEST(Tasks, ArePrintedAsFilesThatReadAsTheSame) {
  for (const std::string& name : task_names()) {
    const Task task = load_task(name);
    const Task again = parse_task(to_toml(task), name, task.source);
    EXPECT_EQ(to_json(again), to_json(task)) << to_toml(task);
    ASSERT_EQ(again.optimizers.size(), task.optimizers.size());
    for (std::size_t i = 0; i < task.optimizers.size(); ++i) {
      EXPECT_EQ(again.optimizers[i].settings, task.optimizers[i].settings);
    }
  }
  // Texts that a number would not give back, and text with every kind of sign.
  const std::string text = replaced("betas = [0.9, 0.99]",
                                    "betas = \"0.90,0.99\"\nlr = \"1e-3\"\nrounding = \"nearest\"");
  const Task task = parse_task(text, "t", "t.toml");
  EXPECT_EQ(to_json(parse_task(to_toml(task), "t", "t.toml")), to_json(task)) << to_toml(task);
  Task odd = task;
  odd.title = "\"quoted\" \\ and \n a tab\t, é";
  EXPECT_EQ(parse_task(to_toml(odd), "t", "t.toml").title, odd.title);
}

TEST(Tasks, NeedMemoryByTheirParameters) {
  EXPECT_EQ(parameter_count(load_task("qwen2-114m").model), 75'497'472 + 38'631'936);
  EXPECT_EQ(parameter_count(load_task("gpt2").model), 84'934'656 + 39'505'152);
  EXPECT_EQ(parameter_count(load_task("resnet50-imagenet").model), 25'502'912 + 54'120);
  const Task gpt2 = load_task("gpt2");
  const std::int64_t least = 8 * parameter_count(gpt2.model);
  require_memory(gpt2, true, least);
  const std::string text = error_of([&] { require_memory(gpt2, true, least - 1); });
  EXPECT_MENTIONS(text, "124439808 parameters, which needs at least 1.0 GB");
  EXPECT_MENTIONS(text, "this machine has 1.0 GB");
  require_memory(gpt2, false, least / 2);
  EXPECT_GT(machine_bytes(), 1 << 20);
}

TEST(Tasks, HoldThePapersProtocols) {
  const Task gpt2 = load_task("gpt2");
  EXPECT_EQ(gpt2.train.steps, 8000);
  EXPECT_EQ(gpt2.train.batch / gpt2.train.accumulate, 16);
  EXPECT_EQ(gpt2.train.warmup, 100);
  const Settings& rode = gpt2.optimizer("rode").settings;  // the rates come first
  EXPECT_EQ(Settings(rode.begin(), rode.begin() + 3),
            (Settings{{"lr", "0.0006432"}, {"lr_rho", "0.01502"}, {"lr_rest", "0.005012"}}));
  const Task large = load_task("qwen2-1.5b");
  EXPECT_EQ(large.train.batch / large.train.accumulate, 2);
  EXPECT_EQ(large.train.parameters, "bf16");
  // The sizes recovered from the paper's tables: managed and delegated parameters.
  const ModelSpec m = load_task("qwen2-114m").model;
  const std::int64_t head = m.width / m.heads;
  const std::int64_t layer =
      m.width * m.width * 2 + 2 * m.width * m.kv_heads * head + 3 * m.width * m.mlp_width;
  EXPECT_EQ(m.layers * layer, 75'497'472);
  const std::int64_t biases = m.width + 2 * m.kv_heads * head;
  EXPECT_EQ(m.vocab_size * m.width + m.layers * (biases + 2 * m.width) + m.width, 38'631'936);
}

TEST(Tasks, OpenTheirData) {
  const Task language = load_task("tiny-lm");
  const auto train = open_sequences(language, Split::train, "nowhere");
  const auto valid = open_sequences(language, Split::valid, "nowhere");
  EXPECT_TRUE(train->best_loss());
  EXPECT_EQ(valid->size(), static_cast<std::uint64_t>(language.data.eval_samples));
  const Task vision = load_task("tiny-vision");
  EXPECT_EQ(open_images(vision, Split::train, "nowhere")->classes(), 12);
  EXPECT_MENTIONS(error_of([&] { open_images(language, Split::train, "nowhere"); }), "tiny-lm");
  EXPECT_MENTIONS(error_of([] { open_sequences(load_task("gpt2"), Split::train, "nowhere"); }),
                  "nowhere/wikitext-103");
}

TEST(Tasks, MayBeFiles) {
  const Scratch scratch;
  write_file(scratch / "mine.toml", kTask);
  EXPECT_EQ(load_task((scratch / "mine.toml").string()).name, "mine");
  EXPECT_MENTIONS(error_of([&] { (void)load_task((scratch / "no.toml").string()); }), "no.toml");
}

}  // namespace
}  // namespace rode::lab
