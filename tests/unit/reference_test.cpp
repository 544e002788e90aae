// SPDX-License-Identifier: Apache-2.0
// The oracle's layouts and baselines against steps small enough to compute by hand.
#include "reference/reference.h"

#include <gtest/gtest.h>

#include "reference_support.h"
#include "rode/error.h"

namespace rode::reference {
namespace {

TEST(ReferenceLayout, InOutIsTheTransposedProblem) {
  Gaussian gaussian(13);
  const auto turned = [](const Tensor& a) {
    Tensor result{{a.shape[1], a.shape[0]}, Data(a.data.size())};
    const auto rows = static_cast<std::size_t>(a.shape[0]);
    const auto cols = static_cast<std::size_t>(a.shape[1]);
    for (std::size_t i = 0; i < rows; ++i)
      for (std::size_t j = 0; j < cols; ++j) result.data[j * rows + i] = a.data[i * cols + j];
    return result;
  };
  for (const char* name : {"rode", "muon"}) {
    const Settings settings = name == std::string("rode") ? rode_settings() : muon_settings();
    const Tensor w = gaussian.tensor({9, 4}), g = gaussian.tensor({9, 4});
    Walk plain(name, settings, w), other(name, settings, turned(w), {.in_out = true, .blocks = {}});
    plain.step(g);
    other.step(turned(g));
    EXPECT_NEAR(distance(turned(plain.w).data, other.w.data), 0.0, kTolerance) << name;
    if (name == std::string("muon")) {  // its scale distinguishes fan-out from fan-in
      Walk wrong(name, settings, turned(w));
      wrong.step(turned(g));
      EXPECT_GT(distance(wrong.w.data, other.w.data), 1e-3);
    }
  }
}

TEST(ReferenceLayout, BlocksStepLikeSeparateMatrices) {
  Gaussian gaussian(14);
  const auto rows = [](const Tensor& a, std::int64_t first, std::int64_t count) {
    const auto begin = a.data.begin() + first * a.shape[1];
    return Tensor{{count, a.shape[1]}, Data(begin, begin + count * a.shape[1])};
  };
  const Tensor w = gaussian.tensor({7, 4});
  const Settings fixed = rode_settings({{"radius", "fixed"}, {"snr", "true"}});
  const Settings projected = muon_settings({{"constraint", "normproj"}, {"scale", "rms"}});
  for (const char* name : {"rode", "muon-normproj"}) {
    const Settings settings = name == std::string("rode") ? fixed : projected;
    Walk fused(name, settings, w, {.blocks = {5, 2}});
    Walk first(name, settings, rows(w, 0, 5)), second(name, settings, rows(w, 5, 2));
    for (int k = 0; k < 3; ++k) {
      const Tensor g = gaussian.tensor({7, 4});
      fused.step(g);
      first.step(rows(g, 0, 5));
      second.step(rows(g, 5, 2));
    }
    EXPECT_EQ(rows(fused.w, 0, 5).data, first.w.data) << name;
    EXPECT_EQ(rows(fused.w, 5, 2).data, second.w.data) << name;
    EXPECT_EQ(fused.state.at("radius").shape, (std::vector<std::int64_t>{2}));
  }
  EXPECT_THROW(initial_state("rode", fixed, {.blocks = {5, 3}}, w), Error);
}

TEST(ReferenceLayout, HigherRanksAreFlattenedBehindTheFirstDimension) {
  Gaussian gaussian(15);
  Tensor w = gaussian.tensor({4, 3, 2}), g = gaussian.tensor({4, 3, 2});
  Walk tensor("rode", rode_settings(), w);
  w.shape = {4, 6};
  Walk matrix("rode", rode_settings(), w);
  tensor.step(g);
  g.shape = {4, 6};
  matrix.step(g);
  EXPECT_EQ(tensor.w.data, matrix.w.data);
}

TEST(ReferenceMuon, OrthogonalisesScalesAndDecaysOnce) {
  // All singular values of a multiple of an orthogonal matrix are equal: the iterate is p(p(...))
  // of 1/sqrt(2) times that matrix.
  Walk walk("muon", muon_settings(), Tensor{{2, 2}, {1, 2, 3, 4}});
  walk.step(Tensor{{2, 2}, {0, -3, 3, 0}});
  double x = 1.0 / std::sqrt(2.0);
  for (int k = 0; k < 5; ++k) x = 3.4445 * x - 4.7750 * std::pow(x, 3) + 2.0315 * std::pow(x, 5);
  const double kept = 1.0 - 0.02 * 0.1, moved = 0.02 * x;
  const Data expected = {kept * 1, kept * 2 + moved, kept * 3 - moved, kept * 4};
  EXPECT_NEAR(distance(walk.w.data, expected), 0.0, kTolerance);
}

TEST(ReferenceMuon, ConstraintsKeepTheInitialNorm) {
  for (const char* constraint : {"normproj", "hyperball"}) {
    Gaussian gaussian(16);
    Walk walk("muon-normproj", muon_settings({{"constraint", constraint}}),
              gaussian.tensor({6, 4}));
    const Tensor start = walk.w;
    for (int k = 0; k < 5; ++k) walk.step(gaussian.tensor({6, 4}));
    EXPECT_NEAR(length(walk.w.data), length(start.data), kTolerance) << constraint;
    EXPECT_GT(distance(walk.w.data, start.data), 1e-2) << constraint;
    Walk zero("muon-normproj", muon_settings({{"constraint", constraint}}),
              Tensor{{2, 3}, Data(6, 0.0)});
    zero.step(gaussian.tensor({2, 3}));
    EXPECT_EQ(zero.w.data, Data(6, 0.0)) << constraint;
    EXPECT_NE(zero.state.at("momentum").data, Data(6, 0.0)) << constraint;
  }
}

TEST(ReferenceMarsM, UnclippedWithGammaOneMinusBetaIsNesterovMuon) {
  Gaussian gaussian(17);
  const Tensor w = gaussian.tensor({5, 3});
  // Small gradients stay unclipped; no epsilon, since the two buffers differ in scale.
  Walk mars("mars-m",
            {{"lr", "0.02"},
             {"weight_decay", "0.1"},
             {"momentum", "0.95"},
             {"gamma", "0.05"},
             {"ns_steps", "5"},
             {"eps", "0"}},
            w);
  Walk muon("muon-rms", muon_settings({{"scale", "rms"}, {"eps", "0"}}), w);
  for (int k = 0; k < 4; ++k) {
    const Tensor g = gaussian.tensor({5, 3}, 1e-2);
    mars.step(g);
    muon.step(g);
  }
  EXPECT_NEAR(distance(mars.w.data, muon.w.data), 0.0, 1e2 * kTolerance);
  EXPECT_GT(distance(mars.w.data, w.data), 1e-2);
}

TEST(ReferenceSoap, FirstGradientOnlySetsTheBases) {
  Gaussian gaussian(18);
  const Settings settings{
      {"lr", "0.01"},  {"weight_decay", "0"},           {"betas", "0.95,0.95"},
      {"eps", "1e-8"}, {"precondition_frequency", "2"}, {"max_precond_dim", "10000"}};
  for (const std::vector<std::int64_t>& shape : {std::vector<std::int64_t>{5, 3}, {4, 3, 2}}) {
    Walk walk("soap", settings, gaussian.tensor(shape));
    const Tensor start = walk.w;
    for (int k = 0; k < 6; ++k) {
      walk.step(gaussian.tensor(shape));
      if (k == 0) {
        EXPECT_EQ(walk.w.data, start.data);
      }
      for (std::size_t mode = 0; mode < shape.size(); ++mode) {
        const auto n = static_cast<std::size_t>(shape[mode]);
        const Data& q = walk.state.at("basis." + std::to_string(mode)).data;
        for (std::size_t i = 0; i < n; ++i)
          for (std::size_t j = 0; j < n; ++j) {
            double product = 0.0;
            for (std::size_t r = 0; r < n; ++r) product += q[r * n + i] * q[r * n + j];
            EXPECT_NEAR(product, i == j ? 1.0 : 0.0, kTolerance);
          }
      }
    }
    EXPECT_NE(walk.w.data, start.data);
  }
}

TEST(ReferenceSoap, WithoutBasesIsAdamBesideItsEpsilon) {
  Gaussian gaussian(19);
  const Tensor w = gaussian.tensor({4, 3});
  Walk soap("soap",
            {{"lr", "0.01"},
             {"weight_decay", "0"},
             {"betas", "0.9,0.95"},
             {"eps", "0"},
             {"precondition_frequency", "1"},
             {"max_precond_dim", "2"}},
            w);
  Walk adam("adamw", {{"lr", "0.01"}, {"weight_decay", "0"}, {"betas", "0.9,0.95"}, {"eps", "0"}},
            w);
  soap.step(gaussian.tensor({4, 3}));
  EXPECT_FALSE(soap.state.contains("gram.0"));
  for (int k = 0; k < 4; ++k) {
    const Tensor g = gaussian.tensor({4, 3});
    soap.step(g);
    adam.step(g);
  }
  EXPECT_NEAR(distance(soap.w.data, adam.w.data), 0.0, kTolerance);
}

TEST(ReferenceAdamW, FirstTwoStepsByHand) {
  Walk walk("adamw",
            {{"lr", "0.1"}, {"weight_decay", "0.5"}, {"betas", "0.9,0.99"}, {"eps", "1e-3"}},
            Tensor{{2}, {1.0, -2.0}});
  walk.step(Tensor{{2}, {4.0, -0.5}}, 0.5);  // the multiplier halves the rate
  // First step: m_hat = g, v_hat = g^2.
  const double w0 = 0.975 * 1.0 - 0.05 * 4.0 / (4.0 + 1e-3);
  const double w1 = 0.975 * -2.0 + 0.05 * 0.5 / (0.5 + 1e-3);
  EXPECT_NEAR(walk.w.data[0], w0, kTolerance);
  EXPECT_NEAR(walk.w.data[1], w1, kTolerance);
  walk.step(Tensor{{2}, {-4.0, -0.5}});
  const double m_hat = (0.9 * 0.4 - 0.1 * 4.0) / 0.19;  // v_hat stays 16
  EXPECT_NEAR(walk.w.data[0], 0.95 * w0 - 0.1 * m_hat / (4.0 + 1e-3), kTolerance);
  EXPECT_EQ(walk.state.at("step").data[0], 2.0);
}

TEST(ReferenceAdamW, StepsTheRestOfRodeWithTheRestsOptions) {
  const Settings settings = rode_settings();
  const Tensor w{{3}, {1, 2, 3}}, g{{3}, {0.1, -0.2, 0.3}};
  Walk rest("rode", settings, w, {.matrix = false, .blocks = {}});
  Walk adam("adamw",
            {{"lr", "1e-3"}, {"weight_decay", "0.1"}, {"betas", "0.9,0.95"}, {"eps", "1e-8"}}, w);
  rest.step(g, 0.7);
  adam.step(g, 0.7);
  EXPECT_EQ(rest.w.data, adam.w.data);
  EXPECT_NE(rest.w.data, w.data);
}

TEST(ReferenceSgd, TwoStepsByHandWithCoupledDecay) {
  Walk walk("sgd",
            {{"lr", "0.1"},
             {"weight_decay", "0.5"},
             {"momentum", "0.9"},
             {"lr_rest", "0.2"},
             {"weight_decay_rest", "0"}},
            Tensor{{1}, {2.0}});
  walk.step(Tensor{{1}, {3.0}});  // g = 3 + 1 = 4, W = 2 - 0.4
  EXPECT_DOUBLE_EQ(walk.w.data[0], 1.6);
  walk.step(Tensor{{1}, {3.0}});  // g = 3.8, B = 3.6 + 3.8, W = 1.6 - 0.74
  EXPECT_DOUBLE_EQ(walk.w.data[0], 0.86);
  walk.treatment.matrix = false;
  walk.step(Tensor{{1}, {1.0}});  // B = 6.66 + 1, rate 0.2, no decay
  EXPECT_DOUBLE_EQ(walk.w.data[0], 0.86 - 0.2 * 7.66);
}

TEST(ReferenceSgd, TwoStepsByHandWithNesterovUphill) {
  Walk walk("sgd",
            {{"lr", "0.1"},
             {"weight_decay", "0.5"},
             {"momentum", "0.9"},
             {"nesterov", "true"},
             {"maximize", "true"}},
            Tensor{{1}, {2.0}});
  walk.step(Tensor{{1}, {3.0}});  // d = -3 + 1 = -2 = B, W = 2 + 0.1 (2 + 1.8)
  EXPECT_DOUBLE_EQ(walk.w.data[0], 2.38);
  walk.step(Tensor{{1}, {3.0}});  // d = -1.81, B = -1.8 - 1.81, W = 2.38 + 0.1 (1.81 + 3.249)
  EXPECT_DOUBLE_EQ(walk.w.data[0], 2.8859);
}

TEST(ReferenceAdEMAMix, FirstStepByHandWithAndWithoutWarmup) {
  const Settings settings{
      {"lr", "0.1"}, {"weight_decay", "0.5"}, {"betas", "0.9,0.99,0.999"}, {"alpha", "2"},
      {"eps", "0"},  {"warmup_steps", "0"}};
  Walk walk("ademamix", settings, Tensor{{1}, {1.0}});
  walk.step(Tensor{{1}, {4.0}});
  // (g + alpha 0.001 g) / g + 0.5 W
  EXPECT_NEAR(walk.w.data[0], 1.0 - 0.1 * (1.0 + 2.0 * 0.001 + 0.5), kTolerance);
  Walk warm("ademamix", with(settings, {{"warmup_steps", "2"}}), Tensor{{1}, {1.0}});
  warm.step(Tensor{{1}, {4.0}});
  const double lives = 0.5 * (std::log(0.5) / std::log(0.9) + std::log(0.5) / std::log(0.999));
  const double beta3 = std::pow(0.5, 1.0 / lives);
  // The schedule's 1e-8 inside the logarithm is omitted here: hence the tolerance.
  EXPECT_NEAR(warm.w.data[0], 1.0 - 0.1 * (1.0 + 1.0 * (1.0 - beta3) + 0.5), 1e-7);
}

TEST(ReferenceAdafactor, FirstStepOfARankOneSquareIsTheSign) {
  const Settings settings{{"lr", "0.1"},          {"weight_decay", "0.5"},
                          {"eps", "1e-30"},       {"clip_threshold", "1"},
                          {"decay_rate", "-0.8"}, {"weight_decay_rest", "0"}};
  const Tensor w{{2, 2}, {1, 1, 1, 1}};
  Walk walk("adafactor", settings, w);
  walk.step(Tensor{{2, 2}, {1, -2, 3, 6}});  // squares are an outer product: factored exactly
  const Data expected = {0.95 - 0.1, 0.95 + 0.1, 0.95 - 0.1, 0.95 - 0.1};
  EXPECT_NEAR(distance(walk.w.data, expected), 0.0, kTolerance);
  EXPECT_EQ(walk.state.at("row").shape, (std::vector<std::int64_t>{2}));
  // The rest's rate falls back to lr.
  Walk vector("adafactor", settings, Tensor{{2}, {1, 1}}, {.matrix = false, .blocks = {}});
  vector.step(Tensor{{2}, {5, -7}});
  EXPECT_NEAR(distance(vector.w.data, {0.9, 1.1}), 0.0, kTolerance);
}

TEST(ReferenceErrors, NameTheKeyAndTheName) {
  const Tensor w{{2, 2}, {1, 2, 3, 4}};
  const auto message = [&](const std::string& name, const Settings& settings) -> std::string {
    try {
      initial_state(name, settings, {}, w);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  Settings without = rode_settings();
  without.erase("lr_rho");
  EXPECT_NE(message("rode", without).find("'lr_rho'"), std::string::npos);
  EXPECT_NE(message("rode", rode_settings({{"reproject", "never"}})).find("'never'"),
            std::string::npos);
  EXPECT_NE(message("rode", rode_settings({{"momentum", "0.9x"}})).find("'momentum'"),
            std::string::npos);
  EXPECT_NE(message("lioness", {}).find("'lioness'"), std::string::npos);
  EXPECT_THROW(initial_state("rode", rode_settings(), {}, Tensor{{4}, {1, 2, 3, 4}}), Error);
}

}  // namespace
}  // namespace rode::reference
