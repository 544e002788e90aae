// SPDX-License-Identifier: Apache-2.0
// Activation checkpointing, the loss in parts, weights in files, and errors of Torch.
#include <set>

#include <nlohmann/json.hpp>
#include <torch/csrc/autograd/autograd.h>

#include "lab/models/autocast.h"
#include "lab/models/functions.h"
#include "lab/models/recompute.h"
#include "lab/models_support.h"
#include "lab/task/model_size.h"
#include "lab/train/torch_messages.h"
#include "rode/safetensors.h"

namespace rode::lab {
namespace {

TEST(Models, HaveAsManyParametersAsTheirShapesSay) {
  for (const char* kind : {"gpt2", "qwen2", "small-resnet", "resnet50"}) {
    for (const bool tied : {true, false}) {
      ModelSpec config = tiny(kind);
      config.tied = tied;
      if (config.kind.ends_with("resnet") || config.kind == "resnet50") config.vocab_size = 0;
      if (config.kind == "small-resnet") config.layers = 5;
      std::int64_t count = 0;
      for (const at::Tensor& parameter : make_model(config, 1)->module().parameters()) {
        count += parameter.numel();
      }
      EXPECT_EQ(parameter_count(config), count) << kind;
    }
  }
}

TEST(Checkpointing, GivesThePlainGradientsToTheBit) {
  for (const char* kind : {"gpt2", "qwen2"}) {
    for (const double dropout : {0.0, 0.3}) {
      const auto model = make_model(tiny(kind, dropout), 3);
      const Example data = example(model->config());
      at::manual_seed(11);
      const std::vector<at::Tensor> plain = gradients(*model, data);
      const at::Tensor after = at::rand({2});
      model->set_checkpoint_activations(true);
      at::manual_seed(11);
      expect_equal(gradients(*model, data), plain);
      EXPECT_TRUE(at::equal(at::rand({2}), after)) << "the generator was left elsewhere";
    }
  }
}

// The backward pass of a trainer runs outside of autocast, and may run inside.
TEST(Checkpointing, RunsAgainUnderTheAutocastOfTheFirstRun) {
  for (const char* kind : {"gpt2", "qwen2"}) {
    const auto model = make_model(tiny(kind), 3);
    const Example data = example(model->config());
    for (const bool inside : {false, true}) {
      std::vector<std::vector<at::Tensor>> found;
      for (const bool checkpoint : {false, true}) {
        model->set_checkpoint_activations(checkpoint);
        model->module().zero_grad();
        std::optional<AutocastScope> scope(std::in_place, at::kCPU,
                                           AutocastState{true, at::kBFloat16});
        at::autocast::set_autocast_cache_enabled(true);
        at::Tensor loss = model->loss(data.input, data.target);
        if (!inside) scope.reset();
        loss.backward();
        scope.reset();
        at::autocast::clear_cache();
        at::autocast::set_autocast_cache_enabled(true);
        found.emplace_back();
        for (const at::Tensor& p : model->module().parameters()) {
          found.back().push_back(p.grad().clone());
        }
      }
      expect_equal(found[1], found[0]);
    }
  }
}

TEST(Checkpointing, KeepsNothingFromInsideTheBlock) {
  const at::Tensor x = at::ones({4}).requires_grad_();
  const at::Tensor w = at::full({4}, 2.0).requires_grad_();
  int runs = 0;
  c10::weak_intrusive_ptr<c10::TensorImpl> inner(c10::make_intrusive<c10::TensorImpl>(
      c10::DispatchKeySet(), caffe2::TypeMeta::Make<float>(), std::nullopt));
  const Block block = [&](const at::Tensor& input) {
    ++runs;
    const at::Tensor inside = input * w;
    inner = c10::weak_intrusive_ptr<c10::TensorImpl>(inside.getIntrusivePtr());
    return inside * inside;
  };
  const at::Tensor y = recompute(block, x, {w}, false);
  EXPECT_TRUE(inner.expired());
  EXPECT_EQ(runs, 1);
  y.sum().backward();
  EXPECT_EQ(runs, 2);
  EXPECT_TRUE(at::equal(w.grad(), at::full({4}, 4.0)));  // 2 w x^2
  EXPECT_TRUE(at::equal(x.grad(), at::full({4}, 8.0)));  // 2 x w^2
}

TEST(Checkpointing, WorksWhereTheInputWantsNoGradientAndAParameterHasNone) {
  const at::Tensor x = at::ones({4});
  const at::Tensor w = at::full({4}, 2.0).requires_grad_();
  const at::Tensor unused = at::ones({1}).requires_grad_();
  const at::Tensor y =
      recompute([&](const at::Tensor& input) { return input * w; }, x, {w, unused}, false);
  y.sum().backward();
  EXPECT_TRUE(at::equal(w.grad(), x));
  EXPECT_FALSE(unused.grad().defined());
}

TEST(Checkpointing, RefusesASecondDerivative) {
  const at::Tensor x = at::ones({4}).requires_grad_();
  const at::Tensor y = recompute([](const at::Tensor& v) { return v * v; }, x, {}, false);
  const std::string text =
      error_of([&] { (void)::torch::autograd::grad({y.sum()}, {x}, {}, std::nullopt, true); });
  EXPECT_NE(text.find("second derivative"), std::string::npos) << text;
}

TEST(LinearCrossEntropy, IsTheCrossEntropyOfAllLogitsWhateverItsParts) {
  at::manual_seed(1);
  const auto wide = at::TensorOptions().dtype(at::kDouble);
  const at::Tensor hidden = at::randn({3, 4, 8}, wide).requires_grad_();
  const at::Tensor weight = at::randn({11, 8}, wide).requires_grad_();
  const at::Tensor targets = whole_wave({3, 4}, 11, 2);
  const at::Tensor plain =
      at::cross_entropy_loss(at::linear(hidden, weight).view({12, 11}), targets.view({12}));
  const auto expected = ::torch::autograd::grad({plain * 3}, {hidden, weight});
  for (const std::int64_t rows : {0, 1, 5, 12, 100}) {
    const at::Tensor loss = linear_cross_entropy(hidden, weight, targets, rows);
    const auto found = ::torch::autograd::grad({loss * 3}, {hidden, weight});
    EXPECT_TRUE(at::allclose(loss, plain, 1e-13, 0)) << rows;
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_TRUE(at::allclose(found[i], expected[i], 1e-11, 1e-14)) << rows;
    }
    const at::NoGradGuard no_grad;
    EXPECT_TRUE(at::equal(linear_cross_entropy(hidden, weight, targets, rows), loss));
  }
}

TEST(LinearCrossEntropy, StandsLargeLogitsAndRefusesAWrongCount) {
  const at::Tensor hidden = at::full({2, 1}, 1e4).requires_grad_();
  const at::Tensor weight = at::arange(3, at::kFloat).view({3, 1});
  const at::Tensor targets = whole_wave({2}, 1, 0);
  const at::Tensor loss = linear_cross_entropy(hidden, weight, targets);
  EXPECT_EQ(loss.item<float>(), 2e4F);
  loss.backward();
  EXPECT_TRUE(at::equal(hidden.grad(), at::ones({2, 1})));  // (2 - 0) / 2 each
  EXPECT_NE(error_of([&] { (void)linear_cross_entropy(hidden, weight, targets.narrow(0, 0, 1)); }),
            "");
}

at::Tensor logits_of(Model& model) {
  const at::NoGradGuard no_grad;
  model.module().eval();
  return model.logits(example(model.config()).input);
}

TEST(Weights, AreTheSameAfterAFile) {
  const Scratch scratch;
  for (const char* kind : {"gpt2", "qwen2", "small-resnet"}) {
    const auto model = make_model(tiny(kind), 3);
    (void)model->loss(example(model->config()).input, example(model->config()).target);
    save_weights(*model, scratch / "w.safetensors");
    const auto other = make_model(tiny(kind), 4);
    EXPECT_FALSE(at::equal(logits_of(*other), logits_of(*model)));
    load_weights(*other, scratch / "w.safetensors");
    EXPECT_TRUE(at::equal(logits_of(*other), logits_of(*model))) << kind;
    expect_equal(other->module().buffers(), model->module().buffers());
    const std::string bytes = read_file(scratch / "w.safetensors");
    save_weights(*other, scratch / "w.safetensors");
    EXPECT_EQ(read_file(scratch / "w.safetensors"), bytes) << kind;
  }
}

TEST(Weights, HaveHuggingFacesNamesAndLayoutAndOneHead) {
  const Scratch scratch;
  const auto model = make_model(tiny("gpt2"), 3);
  save_pretrained(*model, scratch / "out");
  const SafetensorsFile file = SafetensorsFile::open(scratch / "out/model.safetensors");
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(file.tensor("transformer.h.0.attn.c_attn.weight").shape, (Shape{16, 48}));
  EXPECT_EQ(file.tensor("transformer.h.0.mlp.c_proj.weight").shape, (Shape{24, 16}));
  EXPECT_FALSE(file.contains("lm_head.weight"));
  EXPECT_EQ(file.names().size(), 2U + 3 * 12 + 2);
  const auto config = nlohmann::json::parse(read_file(scratch / "out/config.json"));
  EXPECT_EQ(config.at("n_inner"), 24);
  ModelSpec untied = tiny("qwen2");
  untied.tied = false;
  save_weights(*make_model(untied, 3), scratch / "untied.safetensors");
  EXPECT_TRUE(SafetensorsFile::open(scratch / "untied.safetensors").contains("lm_head.weight"));
}

// The tensors of a file, to be written again with changes.
struct Edited {
  SafetensorsFile file;
  std::vector<TensorEntry> entries;

  explicit Edited(const std::filesystem::path& path) : file(SafetensorsFile::open(path)) {
    for (const std::string& name : file.names()) entries.push_back({name, file.tensor(name)});
  }
  TensorEntry& at(const std::string& name) {
    for (TensorEntry& entry : entries) {
      if (entry.name == name) return entry;
    }
    throw std::out_of_range(name);
  }
};

TEST(Weights, OfTheBodyAloneAndWithAWrittenHeadAreTaken) {
  const Scratch scratch;
  const auto model = make_model(tiny("gpt2"), 3);
  save_weights(*model, scratch / "w.safetensors");
  Edited edited(scratch / "w.safetensors");
  for (TensorEntry& entry : edited.entries) {
    entry.name = entry.name.substr(std::string_view("transformer.").size());
  }
  edited.entries.push_back({"h.0.attn.bias", edited.at("ln_f.bias").view});  // an old file's mask
  edited.entries.push_back({"lm_head.weight", edited.at("wte.weight").view});
  write_safetensors(scratch / "body.safetensors", edited.entries);
  const auto other = make_model(tiny("gpt2"), 4);
  load_weights(*other, scratch / "body.safetensors");
  EXPECT_TRUE(at::equal(logits_of(*other), logits_of(*model)));
}

TEST(Weights, ThatDoNotFitAreRefusedAndChangeNothing) {
  const Scratch scratch;
  const auto model = make_model(tiny("qwen2"), 3);
  save_weights(*model, scratch / "w.safetensors");
  const auto other = make_model(tiny("qwen2"), 4);
  const at::Tensor before = logits_of(*other);
  const auto message = [&](auto&& change) {
    Edited edited(scratch / "w.safetensors");
    change(edited);
    write_safetensors(scratch / "bad.safetensors", edited.entries);
    return error_of([&] { load_weights(*other, scratch / "bad.safetensors"); });
  };
  const std::string missing = message([](Edited& e) { e.at("model.norm.weight").name = "x"; });
  EXPECT_NE(missing.find("model.norm.weight"), std::string::npos) << missing;
  const std::string unknown = message(
      [](Edited& e) { e.entries.push_back({"model.layers.3.x", e.at("model.norm.weight").view}); });
  EXPECT_NE(unknown.find("model.layers.3.x"), std::string::npos) << unknown;
  const std::string shape = message([](Edited& e) {
    e.at("model.layers.2.mlp.up_proj.weight").view = e.at("model.norm.weight").view;
  });
  EXPECT_NE(shape.find("(24, 16)"), std::string::npos) << shape;
  const std::vector<float> zeros(37 * 16);
  const std::string head = message(
      [&](Edited& e) { e.entries.push_back({"lm_head.weight", view(zeros.data(), {37, 16})}); });
  EXPECT_NE(head.find("tied = false"), std::string::npos) << head;
  EXPECT_TRUE(at::equal(logits_of(*other), before));
}

TEST(Weights, InBf16AreWrittenAsTheyAreAndReadIntoFp32) {
  const Scratch scratch;
  const auto model = make_model(tiny("gpt2"), 3);
  model->module().to(at::kBFloat16);
  save_weights(*model, scratch / "w.safetensors");
  EXPECT_EQ(SafetensorsFile::open(scratch / "w.safetensors").tensor("transformer.wte.weight").dtype,
            DType::bf16);
  const auto other = make_model(tiny("gpt2"), 4);
  load_weights(*other, scratch / "w.safetensors");
  const auto rounded = model->module().parameters();
  const auto read = other->module().parameters();
  for (std::size_t i = 0; i < read.size(); ++i) {
    EXPECT_TRUE(at::equal(read[i], rounded[i].to(at::kFloat))) << i;
  }
}

TEST(TorchMessages, WhatTorchRefusesIsToldWithARemedyAndWithoutAStackTrace) {
  WarningNotes notes([](const std::string&) {});
  const std::string error = error_of(
      [&] { with_torch_messages(notes, [] { return at::empty({std::int64_t{1} << 43}); }); });
  EXPECT_MENTIONS(error, "out of memory: ");
  EXPECT_MENTIONS(error, " bytes were requested");
  EXPECT_MENTIONS(error, "lower batch");
  for (const char* raw : {"\n", "alloc_cpu", "Exception raised", "frame #"}) {
    EXPECT_EQ(error.find(raw), std::string::npos) << error;
  }
}

}  // namespace
}  // namespace rode::lab
