// SPDX-License-Identifier: Apache-2.0
// Rates of the rest that follow lr, and matrices that begin at zero, also through archives.
#include "support.h"

namespace rode::torch {
namespace {

// One group of tensors in which the optimizer routes, under a scheduler.
template <class Engine>
class RatesOfTheRest : public testing::Test {};
TYPED_TEST_SUITE(RatesOfTheRest, Engines);

TYPED_TEST(RatesOfTheRest, FollowLrAlsoAfterAnArchive) {
  LanguageModel model;
  const Method own = TypeParam{};
  const double lr = *own.number("lr"), rest = *own.number("lr_rest");
  OptimizerOf<TypeParam> routed(model, TypeParam{.lr = lr / 8});
  EXPECT_EQ(routed.options(1).get_lr(), rest / 8);
  routed.options(1).set_lr(0.5);
  EXPECT_EQ(routed.options(1).get_lr(), 0.5);

  const std::vector<Tensor> p = make_parameters();
  OptimizerOf<TypeParam> before(p, TypeParam{.lr = lr / 8});
  const auto step = [](auto& optimizer, const std::vector<Tensor>& parameters, int t) {
    set_grads(parameters, t);
    optimizer.step();
  };
  step(before, p, 0);
  before.options().set_lr(lr / 16);
  std::istringstream file(saved(before));
  const std::vector<Tensor> q = copies(p);
  OptimizerOf<TypeParam> after(q);
  ::torch::serialize::InputArchive archive;
  archive.load_from(file);
  after.load(archive);
  EXPECT_FALSE(after.options().lr_rest.has_value());
  EXPECT_EQ(after.options().method().number("lr_rest"), rest / 16);
  step(before, p, 1);
  step(after, q, 1);
  expect_same(p, q);
}

TEST(PresetArchives, LoadIntoTheirClass) {
  const std::vector<Tensor> p = make_parameters();
  Muon before(p, rode::MuonOptions{.lr = 5e-3, .scale = MuonScale::rms});
  std::istringstream file(saved(before));
  Muon after(copies(p));
  ::torch::serialize::InputArchive archive;
  archive.load_from(file);
  after.load(archive);
  EXPECT_EQ(after.options().scale, MuonScale::rms);
}

// `silent`: steps in which the matrix has a gradient of zeros.
void expect_remembered(const RODEOptions& options, const char* state, int silent) {
  std::vector<Tensor> p = make_parameters();
  p[0] = at::zeros_like(p[0]).requires_grad_();
  RODE before(p, options);
  const auto step = [&](RODE& optimizer, const std::vector<Tensor>& parameters, int t) {
    set_grads(parameters, t);
    if (t < silent) parameters[0].grad().zero_();
    optimizer.step();
  };
  for (int t = 0; t < 5; ++t) step(before, p, t);
  EXPECT_EQ(p[0].detach().abs().max().item<double>() > 1e-3, silent == 0);
  EXPECT_TRUE(before.state_tensor(p[0], state).defined());
  EXPECT_TRUE(holds(before.engine().routing_table(), "zero start"));
  std::istringstream file(saved(before));
  const std::vector<Tensor> q = copies(p);
  RODE after(q, options);
  ::torch::serialize::InputArchive archive;
  archive.load_from(file);
  after.load(archive);
  EXPECT_TRUE(holds(after.engine().routing_table(), "zero start"));
  for (int t = 5; t < 8; ++t) {
    step(before, p, t);
    step(after, q, t);
  }
  expect_same(p, q);
}

TEST(ZeroStart, LearnsAndIsRememberedByAnArchive) {
  expect_remembered(RODEOptions{}, "exp_avg", 0);
  for (const int silent : {0, 6}) {
    const RODEOptions starts(rode::RodeOptions{.on_zero = OnZero::start});
    expect_remembered(starts, "start_norm", silent);
  }
}

}  // namespace
}  // namespace rode::torch
