// SPDX-License-Identifier: Apache-2.0
// LibTorch's contract: groups, closures, archives, errors.
#include "support.h"

namespace rode::torch {
namespace {

using ::torch::optim::OptimizerParamGroup;

// ---- Archives ---------------------------------------------------------------------------------

template <class Engine>
class Archives : public testing::Test {};
TYPED_TEST_SUITE(Archives, Engines);

TYPED_TEST(Archives, ContinueBitForBit) {
  TypeParam options;
  // The bits of the rounding depend on the step count.
  options.storage.rounding = Rounding::stochastic;
  LanguageModel through, first, second;
  for (LanguageModel* model : {&through, &first, &second}) model->to(at::kBFloat16);
  OptimizerOf<TypeParam> whole(through, options), before(first, options);
  train(through, whole, 0, 3);
  train(first, before, 0, 3);
  for (auto* optimizer : {&whole, &before}) {
    for (std::size_t g = 0; g < 2; ++g) {
      optimizer->options(g).set_lr(0.5 * optimizer->options(g).get_lr());
    }
  }
  std::stringstream model_file, optimizer_file;
  ::torch::serialize::OutputArchive weights;
  first.save(weights);
  weights.save_to(model_file);
  ::torch::save(before, optimizer_file);

  ::torch::serialize::InputArchive read;
  read.load_from(model_file);
  second.load(read);
  OptimizerOf<TypeParam> after(second, TypeParam{.lr = 1});
  const auto* held = &after.options();
  ::torch::load(after, optimizer_file);
  EXPECT_EQ(held, &after.options());
  EXPECT_EQ(after.steps_done(), 3);
  EXPECT_EQ(after.options(1).get_lr(), before.options(1).get_lr());
  train(through, whole, 3, 6);
  train(second, after, 3, 6);
  expect_same(through.parameters(), second.parameters());
}

TEST(Int8State, ContinuesBitForBitAndIsConvertedWhereTheOptionChanges) {
  RODEOptions options;
  options.storage.state_dtype = StateDType::int8;
  options.storage.state_rounding = StateRounding::stochastic;
  LanguageModel first, second;
  RODE before(first, options);
  train(first, before, 0, 3);
  std::stringstream model_file, optimizer_file;
  ::torch::serialize::OutputArchive weights;
  first.save(weights);
  weights.save_to(model_file);
  ::torch::save(before, optimizer_file);
  ::torch::serialize::InputArchive read;
  read.load_from(model_file);
  second.load(read);
  RODE after(second, RODEOptions{});
  ::torch::load(after, optimizer_file);
  train(first, before, 3, 5);
  train(second, after, 3, 5);
  const auto ours = first.parameters(), theirs = second.parameters();
  for (std::size_t i = 0; i < ours.size(); ++i) EXPECT_TRUE(ours[i].equal(theirs[i])) << i;

  const auto set = [&](StateDType dtype) {
    for (std::size_t g = 0; g < 2; ++g) before.options(g).storage.state_dtype = dtype;
    before.bind();
  };
  const std::size_t matrices = before.param_groups()[0].params().size();
  ASSERT_GT(matrices, 0U);
  const at::Tensor p = before.param_groups()[0].params()[0];
  const at::Tensor q = before.state_tensor(p, "momentum").clone();
  const at::Tensor scales = before.state_tensor(p, "momentum_scale").clone();
  EXPECT_EQ(q.scalar_type(), at::kChar);
  EXPECT_EQ(q.abs().max().item<int>(), 127);
  ASSERT_EQ(scales.size(1), 1) << "the model's rows are one block";
  set(StateDType::fp32);
  const at::Tensor wide = before.state_tensor(p, "momentum").clone();
  EXPECT_TRUE(wide.equal(q.to(at::kFloat) * scales));
  EXPECT_FALSE(before.state_tensor(p, "momentum_scale").defined());
  set(StateDType::int8);
  EXPECT_TRUE(before.state_tensor(p, "momentum").equal(q));
  EXPECT_TRUE(at::allclose(before.state_tensor(p, "momentum_scale"), scales, 1e-6));
  set(StateDType::bf16);
  EXPECT_EQ(before.state_tensor(p, "momentum").scalar_type(), at::kBFloat16);
}

TEST(Archives, OfExactRoundingHoldTheLowBits) {
  const rode::RodeOptions options{.storage = {.rounding = Rounding::exact}};
  const std::vector<Tensor> p = make_parameters(at::kBFloat16);
  RODE optimizer(p, options);
  set_grads(p, 0);
  optimizer.step();
  const std::vector<Tensor> q = copies(p);
  RODE other(q, options);
  std::istringstream in(saved(optimizer));
  ::torch::load(other, in);
  for (auto* tensors : {&p, &q}) set_grads(*tensors, 1);
  optimizer.step();
  other.step();
  expect_same(p, q);
  EXPECT_TRUE(
      same_bits(optimizer.state_tensor(p[0], "low_bits"), other.state_tensor(q[0], "low_bits")));
}

template <class Optimizer>
std::string load_error(Optimizer& optimizer, const std::string& bytes) {
  std::istringstream in(bytes);
  return error_of([&] { ::torch::load(optimizer, in); });
}

TEST(Archives, ThatAreDamagedAreRefusedAndChangeNothing) {
  const std::vector<Tensor> p = make_parameters();
  RODE saver(p, 0.25);
  set_grads(p, 0);
  saver.step();
  const std::string good = saved(saver);
  // Torch itself does not check the values, so damage in them must be found: some bytes of the
  // state.
  const Tensor momentum = saver.state_tensor(p[0], "momentum").contiguous();
  const std::string bytes(static_cast<const char*>(momentum.const_data_ptr()), momentum.nbytes());
  const std::size_t at = good.find(bytes);
  ASSERT_NE(at, std::string::npos);
  const std::vector<Tensor> q = make_parameters();
  RODE loader(q, 0.25);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    std::string bad = good;
    bad[at + i] = static_cast<char>(bad[at + i] ^ (1 << (i % 8)));
    const std::string error = load_error(loader, bad);
    EXPECT_NE(error.find("it was damaged"), std::string::npos) << "byte " << i << ": " << error;
  }
  EXPECT_EQ(loader.steps_done(), 0);
  EXPECT_EQ(load_error(loader, good), "");
  EXPECT_EQ(loader.steps_done(), 1);
}

TEST(Archives, ThatDoNotBelongHereAreRefusedAndChangeNothing) {
  const std::vector<Tensor> p = make_parameters(), q = make_parameters();
  RODE saver(p, 0.25);
  set_grads(p, 0);
  saver.step();
  const std::string bytes = saved(saver);

  Muon muon(q);
  const std::string kind = load_error(muon, bytes);
  EXPECT_TRUE(holds(kind, "'rode'") && holds(kind, "'muon'")) << kind;

  RODE fewer(std::vector<Tensor>{q[0]});
  const std::string count = load_error(fewer, bytes);
  EXPECT_TRUE(holds(count, "3 parameters") && holds(count, "1 here")) << count;

  std::vector<Tensor> other{q[1], q[0], q[2]};
  RODE turned(other, 0.125);
  set_grads(other, 0);
  turned.step();
  const Tensor momentum = turned.state_tensor(q[1], "momentum").clone();
  const std::string shape = load_error(turned, bytes);
  EXPECT_TRUE(holds(shape, "'momentum' of parameter 'param.0'") && holds(shape, "(5, 12)"))
      << shape;
  EXPECT_EQ(turned.options().get_lr(), 0.125);
  EXPECT_TRUE(same_bits(momentum, turned.state_tensor(q[1], "momentum")));

  RODEOptions named(0.25);
  named.names = {"a", "b", "c"};
  RODE renamed(q, named);
  const std::string name = load_error(renamed, bytes);
  EXPECT_TRUE(holds(name, "'param.0'") && holds(name, "'a'")) << name;

  ::torch::optim::SGD foreign(p, 0.1);
  const std::string none = load_error(turned, saved(foreign));
  EXPECT_TRUE(holds(none, "no 'steps_done'")) << none;
}

// ---- Groups and steps -------------------------------------------------------------------------

TEST(Groups, HaveOptionsOfTheirOwn) {
  const std::vector<Tensor> p = make_parameters(), alone = copies(p);
  std::vector<OptimizerParamGroup> groups;
  groups.emplace_back(std::vector{p[0]}, std::make_unique<SGDOptions>(0.5));
  groups.emplace_back(std::vector{p[1]});
  SGD optimizer(groups, SGDOptions(0.125));
  SGD first(std::vector{alone[0]}, 0.5), second(std::vector{alone[1]}, 0.125);
  for (int t = 0; t < 3; ++t) {
    set_grads(p, t);
    set_grads(alone, t);
    for (SGD* each : {&optimizer, &first, &second}) each->step();
  }
  expect_same(p, alone);
}

TEST(Groups, AddedLaterKeepTheStateOfTheOthers) {
  const std::vector<Tensor> p = make_parameters(), alone = copies(p);
  RODE optimizer(std::vector{p[0]}), first(std::vector{alone[0]}), second(std::vector{alone[1]});
  for (int t = 0; t < 4; ++t) {
    set_grads(p, t);
    set_grads(alone, t);
    if (t == 2) optimizer.add_param_group(OptimizerParamGroup({p[1]}));
    optimizer.step();
    first.step();
    if (t >= 2) second.step();
  }
  expect_same({p[0], p[1]}, {alone[0], alone[1]});
  EXPECT_EQ(optimizer.steps_done(), 4);

  const std::string refused =
      error_of([&] { optimizer.add_param_group({{p[2]}, std::make_unique<RODEOptions>(-1.0)}); });
  EXPECT_TRUE(holds(refused, "'lr': expected a number >= 0, got '-1'")) << refused;
  EXPECT_EQ(optimizer.param_groups().size(), 2U);
  const std::string foreign =
      error_of([&] { optimizer.add_param_group({{p[2]}, std::make_unique<MuonOptions>()}); });
  EXPECT_TRUE(holds(foreign, "group 2")) << foreign;
}

TEST(Options, ChangeBetweenSteps) {
  const std::vector<Tensor> p = make_parameters(), q = make_parameters();
  rode::RodeOptions changed{.lr = 0.1, .momentum = 0.5};
  RODE optimizer(p, rode::RodeOptions{.lr = 0.1}), reference(q, rode::RodeOptions{.lr = 0.1});
  set_grads(p, 0);
  set_grads(q, 0);
  optimizer.step();
  reference.step();
  expect_same(p, q);
  const Tensor momentum = optimizer.state_tensor(p[0], "momentum");
  set_grads(p, 1);
  optimizer.options().momentum = 0.5;  // live
  optimizer.step();
  EXPECT_EQ(optimizer.engine().method().get_if<rode::RodeOptions>()->momentum, 0.5);
  EXPECT_GT(distance(p[0], q[0]), 1e-3);
  optimizer.options().ns_steps = 3;  // fixed: a new engine on the same state
  optimizer.step();
  EXPECT_EQ(optimizer.engine().method().get_if<rode::RodeOptions>()->ns_steps, 3);
  EXPECT_EQ(optimizer.state_tensor(p[0], "momentum").data_ptr(), momentum.data_ptr());
  optimizer.options().coefficients = rode::Coefficients::four;  // has four iterations of its own
  EXPECT_TRUE(holds(error_of([&] { optimizer.step(); }), "ns_steps=4"));
  optimizer.options().ns_steps.reset();
  optimizer.step();
  EXPECT_EQ(optimizer.engine().method().get_if<rode::RodeOptions>()->coefficients,
            rode::Coefficients::four);
  EXPECT_EQ(optimizer.steps_done(), 4);
}

TEST(Options, OfAMultiplierStayAsTheyWereSet) {
  const rode::RodeOptions options{.lr = 0.1, .lr_rho = 0.5, .lr_rest = 0.02};
  const std::vector<Tensor> p = make_parameters(), q = make_parameters();
  RODE optimizer(p, options);
  rode::Optimizer engine(views(q), options);
  for (int t = 0; t < 3; ++t) {
    set_grads(p, t);
    set_grads(q, t);
    bind_grads(engine, q);
    optimizer.step(0.3 + t);
    engine.step(0.3 + t);
  }
  expect_same(p, q);
  EXPECT_TRUE(static_cast<const rode::RodeOptions&>(optimizer.options()) == options);
  const std::string refused = error_of([&] { optimizer.step(-1.0); });
  EXPECT_TRUE(holds(refused, "multiplier")) << refused;
}

TEST(Engine, IsReadWithoutBindingAnything) {
  const std::vector<Tensor> p = make_parameters();
  RODE optimizer(p, 0.25);
  optimizer.check();
  const std::string none = error_of([&] { optimizer.engine(); });
  EXPECT_TRUE(holds(none, "before the first step")) << none;
  EXPECT_FALSE(optimizer.state_tensor(p[0], "momentum").defined());
  optimizer.bind();
  EXPECT_TRUE(optimizer.state_tensor(p[0], "momentum").defined());
  optimizer.options().lr = 0.5;
  EXPECT_EQ(optimizer.engine().method().number("lr"), 0.25);  // as of the last bind
  optimizer.bind();
  EXPECT_EQ(optimizer.engine().method().number("lr"), 0.5);
}

TEST(Engine, OfAMethodKnownAtRunTimeIsThatOfItsClass) {
  LanguageModel first, second;
  const auto by_name = make_optimizer(first, Method::by_name("muon-rms", {{"lr", "0.01"}}),
                                      {.route = Route::all_matrices}, {{"gate", Treatment::rest}});
  MuonOptions options(*Method::by_name("muon-rms", {{"lr", "0.01"}}).get_if<rode::MuonOptions>());
  options.route = Route::all_matrices;
  Muon by_class(second, options, {{"gate", Treatment::rest}});
  train(first, *by_name, 0, 2);
  train(second, by_class, 0, 2);
  expect_same(first.parameters(), second.parameters());
  EXPECT_EQ(by_name->engine().routing_table(), by_class.engine().routing_table());
}

TEST(Closures, ComputeTheLossWithGradients) {
  LanguageModel model;
  RODE optimizer(model);
  const at::NoGradGuard no_grad;
  const Tensor loss = optimizer.step([&] {
    optimizer.zero_grad();
    Tensor out = model.loss(0);
    out.backward();
    return out;
  });
  EXPECT_GT(loss.item<double>(), 0);
  RODE moved(std::move(optimizer));
  moved.step();
  EXPECT_EQ(moved.steps_done(), 2);
}

TEST(Errors, NameTheParameterAndTheRemedy) {
  std::vector<Tensor> p = make_parameters();
  RODEOptions named(0.1);
  named.names = {"wide", "tall", "bias"};
  RODE optimizer(p, named);
  set_grads(p, 0);
  const Tensor before = p[0].detach().clone();
  p[1].mutable_grad()[0][0] = NAN;
  const std::string nan = error_of([&] { optimizer.step(); });
  EXPECT_TRUE(holds(nan, "'tall'")) << nan;
  EXPECT_TRUE(same_bits(before, p[0]));
  p[1].mutable_grad() = at::ones({5, 12}).to_sparse();
  const std::string sparse = error_of([&] { optimizer.step(); });
  EXPECT_TRUE(holds(sparse, "'tall'") && holds(sparse, "sparse(false)")) << sparse;

  RODE wide(std::vector{at::ones({2, 2}, at::kDouble).requires_grad_()});
  const std::string type = error_of([&] { wide.step(); });
  EXPECT_TRUE(holds(type, "'param.0'") && holds(type, "Double")) << type;
  named.names.pop_back();
  EXPECT_TRUE(holds(error_of([&] { RODE unnamed(p, named); }), "2 names"));
  const std::string rate = error_of([&] { RODE refused(p, -0.5); });
  EXPECT_TRUE(holds(rate, "'lr': expected a number >= 0, got '-0.5'")) << rate;
  // State left by another rule, under different keys.
  SGD sgd(p);
  set_grads(p, 0);
  sgd.step();
  AdamW adamw(p);
  adamw.state()[p[0].unsafeGetTensorImpl()] = sgd.state()[p[0].unsafeGetTensorImpl()]->clone();
  const std::string state = error_of([&] { adamw.step(); });
  EXPECT_TRUE(holds(state, "(momentum)") && holds(state, "no 'exp_avg'")) << state;
  EXPECT_FALSE(adamw.state_tensor(p[1], "exp_avg").defined());
}

TEST(Errors, OfABadGradientMayBeSkippedAndThoseOfWeightsMayNot) {
  std::vector<Tensor> p = make_parameters();
  AdamW optimizer(p);
  optimizer.set_on_non_finite(OnBadGradient::skip);
  set_grads(p, 0);
  p[1].mutable_grad()[0][0] = NAN;
  const std::vector<Tensor> before = copies(p);
  optimizer.step();
  EXPECT_FALSE(same_bits(p[0], before[0]));
  EXPECT_TRUE(same_bits(p[1], before[1]));

  // A weight that is updated through a copy: torch sees the result of a step that overflowed.
  Tensor wide = wave({6, 4}, 1).t().requires_grad_();
  SGD spoiling(std::vector<Tensor>{wide}, SGDOptions(3e38));
  wide.mutable_grad() = at::full({4, 6}, 100.0F);
  try {
    spoiling.step();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::non_finite) << error.what();
    EXPECT_TRUE(error.changed()) << error.what();
  }
  EXPECT_FALSE(at::isfinite(wide).all().item<bool>());
}

}  // namespace
}  // namespace rode::torch
