// SPDX-License-Identifier: Apache-2.0
// Which parameters of a module take the matrix rule.
#include "support.h"

namespace rode::torch {
namespace {

using Names = std::vector<std::string>;

TEST(Routing, GoesByTheTypesOfModules) {
  LanguageModel model;
  RoutedModule routed = route_module(model);
  EXPECT_EQ(routed.matrices.names, (Names{"gate", "mix.weight"}));
  EXPECT_EQ(routed.rest.names,
            (Names{"tokens.weight", "mix.bias", "norm.weight", "norm.bias", "head.weight"}));
  EXPECT_EQ(route_module(model, Route::all_matrices).matrices.names,
            (Names{"gate", "tokens.weight", "mix.weight", "head.weight"}));
  const nn::Sequential pictures(nn::Conv2d(3, 4, 3), nn::BatchNorm2d(4), nn::Linear(4, 2));
  EXPECT_EQ(route_module(*pictures, Route::vision).matrices.names, (Names{"0.weight", "2.weight"}));
  EXPECT_EQ(route_module(*pictures, Route::language).matrices.names, Names{"2.weight"});
  EXPECT_GT(route_module(*pictures, Route::language).rest_share, 0.5);
  const RoutedModule by_itself = route_module(*pictures);
  EXPECT_EQ(by_itself.matrices.names, (Names{"0.weight", "2.weight"}));
  EXPECT_EQ(by_itself.choice.route, Route::vision);
  EXPECT_EQ(by_itself.choice.reason, "it has convolutions and no embedding");
  EXPECT_LT(by_itself.rest_share, 0.5);
}

// The usual way to tie in LibTorch: another module registers the embedding's tensor.
struct Shared : nn::Module {
  explicit Shared(const Tensor& weight) { register_parameter("weight", weight); }
};

TEST(Routing, TakesATensorOfTwoModulesForOne) {
  LanguageModel model;
  model.register_module("unlisted", std::make_shared<Shared>(model.tokens->weight));
  model.register_module("twice", std::make_shared<Shared>(model.mix->weight));
  const RoutedModule routed = route_module(model);
  EXPECT_EQ(routed.matrices.names, (Names{"gate", "mix.weight"}));
  EXPECT_EQ(routed.rest.names.front(), "tokens.weight");
  EXPECT_EQ(routed.rest.names.size(), 5U);
  model.head->weight.set_data(model.tokens->weight);  // two tensors on one memory
  const std::string both = error_of([&] { route_module(model); });
  EXPECT_TRUE(holds(both, "'tokens.weight' and 'head.weight'")) << both;
}

TEST(Routing, TakesOverridesAndLeavesFrozenOnesOut) {
  LanguageModel model;
  model.norm->weight.set_requires_grad(false);
  const RoutedModule routed = route_module(
      model, Route::language, {{"tokens.*", Treatment::frozen}, {"gate", Treatment::rest}});
  EXPECT_EQ(routed.matrices.names, Names{"mix.weight"});
  EXPECT_EQ(routed.rest.names, (Names{"gate", "mix.bias", "norm.bias", "head.weight"}));
  const std::string nothing =
      error_of([&] { route_module(model, Route::language, {{"nowhere", Treatment::rest}}); });
  EXPECT_TRUE(holds(nothing, "nowhere")) << nothing;
  const std::string empty =
      error_of([&] { route_module(model, Route::language, {{"*", Treatment::frozen}}); });
  EXPECT_TRUE(holds(empty, "no parameter to step")) << empty;
}

TEST(Routing, StepsAWholeModelWithOneObject) {
  LanguageModel model;
  RODE optimizer(model, rode::RodeOptions{.lr = 0.1, .lr_rho = 1e-2, .lr_rest = 3e-2});
  const double before = model.loss(0).item<double>();
  train(model, optimizer, 0, 40);
  EXPECT_LT(model.loss(0).item<double>(), 0.5 * before);
  EXPECT_TRUE(optimizer.state_tensor(model.mix->weight, "momentum").defined());
  EXPECT_TRUE(optimizer.state_tensor(model.head->weight, "exp_avg").defined());
  EXPECT_TRUE(holds(optimizer.engine().routing_table(), "mix.weight"));
}

}  // namespace
}  // namespace rode::torch
