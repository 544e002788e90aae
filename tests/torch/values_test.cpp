// SPDX-License-Identifier: Apache-2.0
// What a step of the LibTorch optimizers computes: equal to the engine's values and torch's own, on
// any tensors.
#include "support.h"

namespace rode::torch {
namespace {

template <class Engine>
class Values : public testing::Test {};
TYPED_TEST_SUITE(Values, Engines);

template <class Engine>
Routing routing() {
  // One rule for everything, nothing is left to AdamW.
  if constexpr (requires(Engine e) { e.betas_rest; }) return {};
  return {Route::rest, {{"*", Treatment::matrix}}};
}

TYPED_TEST(Values, EqualTheEnginesBitForBit) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    SCOPED_TRACE(c10::toString(type));
    TypeParam options;
    options.storage.rounding = Rounding::stochastic;
    const std::vector<Tensor> own = make_parameters(type), given = make_parameters(type);
    const Tensor start = own[0].detach().clone();
    rode::Optimizer engine(views(own), options, routing<TypeParam>());
    OptimizerOf<TypeParam> optimizer(given, options);
    for (int t = 0; t < 5; ++t) {
      set_grads(own, t);
      set_grads(given, t);
      bind_grads(engine, own);
      engine.step();
      optimizer.step();
    }
    EXPECT_FALSE(same_bits(start, own[0]));
    expect_same(own, given);
    std::size_t compared = 0;
    for (std::size_t i = 0; i < given.size(); ++i) {
      const std::string prefix = "state.param." + std::to_string(i) + ".";
      for (const TensorEntry& entry : engine.state()) {
        if (!entry.name.starts_with(prefix)) continue;
        const Tensor state = optimizer.state_tensor(given[i], entry.name.substr(prefix.size()));
        ASSERT_TRUE(state.defined()) << entry.name;
        ASSERT_EQ(state.nbytes(), entry.view.bytes()) << entry.name;
        EXPECT_EQ(std::memcmp(state.data_ptr(), entry.view.data, state.nbytes()), 0) << entry.name;
        ++compared;
      }
    }
    EXPECT_EQ(compared, engine.state().size());
  }
}

// Rounding differs by a few units in the last place per step; the decay changes more than that.
void expect_close(const std::vector<Tensor>& a, const std::vector<Tensor>& b,
                  const std::vector<Tensor>& undecayed, int steps) {
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double allowed = steps * std::ldexp(4.0, -24) * a[i].detach().norm().item<double>();
    EXPECT_LE(distance(a[i], b[i]), allowed) << i;
    EXPECT_GT(distance(a[i], undecayed[i]), 10 * allowed) << i;
  }
}

TEST(AgainstTorch, AdamWToRounding) {
  std::vector<Tensor> own = make_parameters(), theirs = make_parameters();
  std::vector<Tensor> undecayed = make_parameters();
  const rode::AdamWOptions options{
      .lr = 1e-2, .weight_decay = 1e-1, .betas = {0.9, 0.95}, .eps = 1e-8};
  AdamW optimizer(own, options);
  AdamW without(undecayed, rode::AdamWOptions{.lr = 1e-2, .weight_decay = 0});
  ::torch::optim::AdamW reference(
      theirs, ::torch::optim::AdamWOptions(1e-2).weight_decay(1e-1).betas({0.9, 0.95}));
  for (int t = 0; t < 20; ++t) {
    for (auto* p : {&own, &theirs, &undecayed}) set_grads(*p, t);
    optimizer.step();
    reference.step();
    without.step();
  }
  expect_close(own, theirs, undecayed, 20);
}

TEST(AgainstTorch, SgdToRounding) {
  std::vector<Tensor> own = make_parameters(), theirs = make_parameters();
  std::vector<Tensor> undecayed = make_parameters();
  SGD optimizer(own, rode::SgdOptions{.lr = 1e-2, .weight_decay = 5e-2, .momentum = 0.9});
  SGD without(undecayed, rode::SgdOptions{.lr = 1e-2, .weight_decay = 0, .momentum = 0.9});
  ::torch::optim::SGD reference(theirs,
                                ::torch::optim::SGDOptions(1e-2).momentum(0.9).weight_decay(5e-2));
  for (int t = 0; t < 20; ++t) {
    for (auto* p : {&own, &theirs, &undecayed}) set_grads(*p, t);
    optimizer.step();
    reference.step();
    without.step();
  }
  expect_close(own, theirs, undecayed, 20);
}

// ---- Schedulers -------------------------------------------------------------------------------

TEST(Schedulers, MoveEveryRateOfAGroup) {
  const rode::RodeOptions options{.lr = 0.05, .lr_rho = 0.5, .lr_rest = 0.01};
  const std::vector<Tensor> own = make_parameters(), given = make_parameters();
  rode::Optimizer engine(views(own), options);
  RODE optimizer(given, options);
  ::torch::optim::StepLR scheduler(optimizer, 1, 0.5);
  for (int t = 0; t < 6; ++t) {
    set_grads(own, t);
    set_grads(given, t);
    bind_grads(engine, own);
    engine.step(optimizer.options().get_lr() / 0.05);  // a power of two: no rounding
    optimizer.step();
    scheduler.step();
  }
  EXPECT_LT(optimizer.options().get_lr(), 0.05 / 16);
  expect_same(own, given);
}

TEST(Schedulers, StartFromTheRateWithWhichTheGroupCame) {
  const std::vector<Tensor> start = make_parameters();
  const std::vector<Tensor> p = copies(start), q = copies(start);
  RODEOptions set;  // through the setter, before they belong to an optimizer
  set.set_lr(0.05);
  RODE one(p, set), other(q, rode::RodeOptions{.lr = 0.05});
  for (int t = 0; t < 3; ++t) {
    for (RODE* optimizer : {&one, &other}) {
      set_grads(optimizer == &one ? p : q, t);
      optimizer->options().set_lr(0.05 / (1 << t));
      optimizer->step();
    }
  }
  EXPECT_EQ(one.options().initial_lr, other.options().initial_lr);
  expect_same(p, q);
}

TEST(Schedulers, LeaveTheRadialRateAloneOnRequest) {
  const std::vector<Tensor> start = make_parameters();
  std::vector<std::vector<Tensor>> results;
  for (const bool coupled : {true, false}) {
    const std::vector<Tensor> p = copies(start);
    RODEOptions options(rode::RodeOptions{.lr = 0.05, .lr_rho = 0.5});
    options.couple_lr_rho = coupled;
    RODE optimizer(p, options);
    for (int t = 0; t < 4; ++t) {
      set_grads(p, t);
      optimizer.options().set_lr(t < 2 ? 0.05 : 0.0);
      optimizer.step();
    }
    results.push_back(p);
  }
  // At lr = 0 the coupled radius stops, and the other continues.
  const Tensor &coupled = results[0][0], &alone = results[1][0];
  EXPECT_GT(distance(coupled, alone), 1e-2 * coupled.detach().norm().item<double>());
}

TEST(Schedulers, MoveTheRestOfAModuleByItsOwnRate) {
  nn::Linear layer(6, 4);
  Muon optimizer(*layer, rode::MuonOptions{.lr = 0.02, .lr_rest = 0.004});
  ASSERT_EQ(optimizer.param_groups().size(), 2U);
  EXPECT_EQ(optimizer.options(0).get_lr(), 0.02);
  EXPECT_EQ(optimizer.options(1).get_lr(), 0.004);
  ::torch::optim::StepLR scheduler(optimizer, 1, 0.5);
  for (int t = 0; t < 3; ++t) scheduler.step();
  EXPECT_LT(optimizer.options(1).get_lr(), 0.004);
  EXPECT_EQ(optimizer.options(1).get_lr() / 0.004, optimizer.options(0).get_lr() / 0.02);
  EXPECT_EQ(optimizer.options(1).lr_rest, optimizer.options(1).get_lr());
}

// ---- Tensors of every form --------------------------------------------------------------------

TEST(Gradients, MayBeAbsentTransposedOrOfAnotherType) {
  const std::vector<Tensor> plain = make_parameters(), other = make_parameters();
  RODE first(plain), second(other);
  for (int t = 0; t < 3; ++t) {
    set_grads(plain, t);
    set_grads(other, t);
    plain[2].mutable_grad() = Tensor();
    other[2].mutable_grad() = Tensor();
    other[0].mutable_grad() = other[0].grad().t().contiguous().t();
    ASSERT_FALSE(other[0].grad().is_contiguous());
    plain[1].mutable_grad() = plain[1].grad().to(at::kHalf).to(at::kFloat);
    other[1].mutable_grad() = other[1].grad().to(at::kHalf).to(at::kDouble);
    first.step();
    second.step();
  }
  expect_same(plain, other);
  EXPECT_TRUE(same_bits(plain[2], make_parameters()[2]));
  EXPECT_EQ(plain[2]._version(), 0);
  EXPECT_EQ(first.engine().skipped(), std::vector<std::string>{"param.2"});
  EXPECT_EQ(first.state_tensor(plain[2], "step").item<std::int64_t>(), 0);
}

TEST(Weights, MayMoveAndMayLieTransposed) {
  const std::vector<Tensor> plain = make_parameters();
  std::vector<Tensor> other = make_parameters();
  other[0] = other[0].detach().t().contiguous().t().requires_grad_();
  ASSERT_FALSE(other[0].is_contiguous());
  Muon first(plain), second(other);
  for (int t = 0; t < 3; ++t) {
    other[1].set_data(other[1].detach().clone());
    set_grads(plain, t);
    set_grads(other, t);
    first.step();
    second.step();
  }
  expect_same(plain, other);
}

TEST(State, IsTheMemoryOfTheEngine) {
  const std::vector<Tensor> p = make_parameters();
  SGD optimizer(p, rode::SgdOptions{.lr = 0.1, .weight_decay = 0, .momentum = 0.5});
  set_grads(p, 0);
  optimizer.step();
  const Tensor momentum = optimizer.state_tensor(p[0], "momentum");
  EXPECT_TRUE(same_bits(momentum, p[0].grad()));
  momentum.zero_();  // in place: the next step must see it
  const Tensor before = p[0].detach().clone();
  const std::int64_t version = p[0]._version();
  p[0].mutable_grad().zero_();
  optimizer.step();
  EXPECT_TRUE(same_bits(before, p[0]));
  EXPECT_EQ(momentum.data_ptr(), optimizer.state_tensor(p[0], "momentum").data_ptr());
  EXPECT_GT(p[0]._version(), version);
}

// ---- CUDA -------------------------------------------------------------------------------------

// Why nothing can be tested on a GPU; empty if it can.
std::string cuda_missing() {
  if (!::torch::cuda::is_available()) return "no usable cuda device";
  const Tensor one = at::ones({2, 2}, at::kCUDA);
  try {
    const rode::Optimizer engine(views({one}), rode::SgdOptions{}, {}, {.device = Device::cuda});
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::unsupported) return error.what();
    throw;
  }
  return {};
}

std::vector<Tensor> moved(const std::vector<Tensor>& tensors, c10::Device device) {
  std::vector<Tensor> out;
  for (const Tensor& t : tensors) out.push_back(t.detach().to(device).requires_grad_());
  return out;
}

template <class Engine>
class TorchCudaValues : public testing::Test {};
TYPED_TEST_SUITE(TorchCudaValues, Engines);

TYPED_TEST(TorchCudaValues, EqualTheEnginesBitForBit) {
  if (const std::string why = cuda_missing(); !why.empty()) GTEST_SKIP() << why;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    SCOPED_TRACE(c10::toString(type));
    const std::vector<Tensor> own = moved(make_parameters(type), at::kCUDA);
    const std::vector<Tensor> given = moved(make_parameters(type), at::kCUDA);
    // Torch's current stream, unless set otherwise.
    rode::Optimizer engine(views(own), TypeParam{}, routing<TypeParam>(), {.device = Device::cuda});
    OptimizerOf<TypeParam> optimizer(given);
    for (int t = 0; t < 4; ++t) {
      set_grads(own, t);
      set_grads(given, t);
      bind_grads(engine, own);
      engine.step();
      optimizer.step();
    }
    engine.check();
    optimizer.engine().check();
    EXPECT_EQ(optimizer.steps_done(), 4);
    expect_same(moved(own, at::kCPU), moved(given, at::kCPU));
    EXPECT_FALSE(same_bits(make_parameters(type)[0], moved(own, at::kCPU)[0]));
  }
}

TEST(TorchCuda, StepsOnTheCurrentStream) {
  if (const std::string why = cuda_missing(); !why.empty()) GTEST_SKIP() << why;
  const rode::RodeOptions options{.lr = 0.05, .lr_rho = 0.1, .ns_dtype = NsDType::fp32};
  const c10::Device device(c10::kCUDA, 0);
  const c10::impl::VirtualGuardImpl streams(c10::kCUDA);
  std::vector<std::vector<Tensor>> results;
  for (const bool side : {false, true}) {
    const c10::StreamGuard guard(side ? streams.getStreamFromGlobalPool(device)
                                      : streams.getDefaultStream(device));
    const std::vector<Tensor> p = moved(make_parameters(), device);
    RODE optimizer(p, options);
    for (int t = 0; t < 4; ++t) {
      set_grads(p, t);
      optimizer.step();
    }
    EXPECT_TRUE(optimizer.state_tensor(p[0], "momentum").is_cuda());
    p[0].mutable_grad() = at::full({24, 16}, NAN, p[0].options().requires_grad(false));
    optimizer.step();  // refused on the device, which becomes known later
    const std::string refused = error_of([&] { optimizer.engine().check(); });
    EXPECT_TRUE(holds(refused, "param.0")) << refused;
    EXPECT_EQ(optimizer.steps_done(), 4);
    results.push_back(moved(p, at::kCPU));
  }
  expect_same(results[0], results[1]);
  const std::vector<Tensor> host = make_parameters();
  RODE optimizer(host, options);
  for (int t = 0; t < 4; ++t) {
    set_grads(host, t);
    optimizer.step();
  }
  for (std::size_t i = 0; i < host.size(); ++i) {
    EXPECT_LE(distance(host[i], results[0][i]), 1e-4 * host[i].detach().norm().item<double>());
  }
}

}  // namespace
}  // namespace rode::torch
