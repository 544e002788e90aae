// SPDX-License-Identifier: Apache-2.0
// Vectors, random tensors and a walking parameter for the oracle's own tests.
#pragma once

#include <cmath>
#include <numbers>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "reference/reference.h"

namespace rode::reference {

constexpr double kTolerance = 1e-12;  // rounding in double, with a margin for a few thousand terms

using Data = std::vector<double>;

inline double dot(const Data& a, const Data& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}
inline double length(const Data& a) { return std::sqrt(dot(a, a)); }

inline Data sum(double alpha, const Data& a, double beta, const Data& b) {
  Data result(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) result[i] = alpha * a[i] + beta * b[i];
  return result;
}
inline Data times(double alpha, const Data& a) { return sum(alpha, a, 0.0, a); }
inline Data unit(const Data& a) { return times(1.0 / length(a), a); }
inline double distance(const Data& a, const Data& b) { return length(sum(1.0, a, -1.0, b)); }

// Box-Muller rather than std::normal_distribution, whose numbers depend on the library.
class Gaussian {
 public:
  explicit Gaussian(std::uint64_t seed) : engine_(seed) {}
  double operator()() {
    const double radius = std::sqrt(-2.0 * std::log(uniform()));
    return radius * std::cos(2.0 * std::numbers::pi * uniform());
  }
  Tensor tensor(std::vector<std::int64_t> shape, double deviation = 1.0) {
    std::size_t size = 1;
    for (std::int64_t extent : shape) size *= static_cast<std::size_t>(extent);
    Tensor result{std::move(shape), Data(size)};
    for (double& x : result.data) x = deviation * (*this)();
    return result;
  }

 private:
  double uniform() { return (static_cast<double>(engine_() >> 11) + 0.5) * 0x1.0p-53; }
  std::mt19937_64 engine_;
};

inline Settings with(Settings settings, const Settings& changes) {
  for (const auto& [key, value] : changes) settings[key] = value;
  return settings;
}

inline Settings rode_settings(const Settings& changes = {}) {
  return with({{"lr", "0.05"},
               {"lr_rho", "0.03"},
               {"momentum", "0.9"},
               {"ns_steps", "5"},
               {"scale", "kernel"},
               {"radius", "learned"},
               {"radius_brake", "1"},
               {"radius_pull", "0"},
               {"radius_scope", "matrix"},
               {"on_zero", "hold"},
               {"direction", "geodesic"},
               {"conditioner", "newton_schulz"},
               {"coefficients", "jordan"},
               {"snr", "false"},
               {"snr_min", "0.01"},
               {"reproject", "guarded"},
               {"nesterov", "false"},
               {"floor", "1e-6"},
               {"eps", "1e-12"},
               {"eps_ns", "1e-12"},
               {"lr_rest", "1e-3"},
               {"weight_decay_rest", "0.1"},
               {"betas_rest", "0.9,0.95"},
               {"eps_rest", "1e-8"}},
              changes);
}

inline Settings muon_settings(const Settings& changes = {}) {
  return with({{"lr", "0.02"},
               {"weight_decay", "0.1"},
               {"momentum", "0.95"},
               {"nesterov", "true"},
               {"ns_steps", "5"},
               {"eps", "1e-7"},
               {"scale", "original"},
               {"constraint", "none"},
               {"coefficients", "jordan"}},
              changes);
}

// A parameter over several steps.
struct Walk {
  std::string optimizer;
  Settings settings;
  Treatment treatment;
  Tensor w;
  State state;

  Walk(std::string name, Settings options, Tensor start, Treatment how = {})
      : optimizer(std::move(name)),
        settings(std::move(options)),
        treatment(std::move(how)),
        w(std::move(start)),
        state(initial_state(optimizer, settings, treatment, w)) {}

  Diagnostics step(const Tensor& g, double multiplier = 1.0) {
    const auto all = reference::step(optimizer, settings, treatment, w, g, state, multiplier);
    return all.empty() ? Diagnostics{} : all.front();
  }
};

}  // namespace rode::reference
