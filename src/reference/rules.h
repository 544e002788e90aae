// SPDX-License-Identifier: Apache-2.0
// The rules behind reference.h, one pair of functions per optimizer.
#pragma once

#include <cstddef>
#include <vector>

#include "reference/matrix.h"
#include "reference/reference.h"

namespace rode::reference {

// The rate and decay that a rule uses, of the matrices or of the rest; `lr` includes the schedule's
// multiplier.
struct Rates {
  double lr = 0, weight_decay = 0;
};

// The decay that is subtracted with the update u of a weight, both times lr. Cautious: none where
// the update moves the weight away from zero.
inline double decay_of(bool cautious, double weight_decay, double w, double update) {
  const bool opposed = (w > 0.0 && update < 0.0) || (w < 0.0 && update > 0.0);
  return cautious && opposed ? 0.0 : weight_decay * w;
}

inline void decay(Matrix& w, const Matrix& update, Rates rates, bool cautious) {
  for (std::size_t i = 0; i < w.data.size(); ++i)
    w.data[i] -= rates.lr * decay_of(cautious, rates.weight_decay, w.data[i], update.data[i]);
}

State rode_state(const Settings& settings, const Treatment& treatment, const Tensor& parameter);
std::vector<Diagnostics> rode_step(const Settings& settings, const Treatment& treatment,
                                   Tensor& parameter, const Tensor& gradient, State& state,
                                   double multiplier);

State muon_state(const Settings& settings, const Treatment& treatment, const Tensor& parameter);
void muon_step(const Settings& settings, const Treatment& treatment, Rates rates, Tensor& parameter,
               const Tensor& gradient, State& state);

State muown_state(const Treatment& treatment, const Tensor& parameter);
void muown_step(const Settings& settings, const Treatment& treatment, Rates rates,
                Tensor& parameter, const Tensor& gradient, State& state, double multiplier);

State mars_m_state(const Settings& settings, const Treatment& treatment, const Tensor& parameter);
void mars_m_step(const Settings& settings, const Treatment& treatment, Rates rates,
                 Tensor& parameter, const Tensor& gradient, State& state);

State soap_state(const Settings& settings, const Tensor& parameter);
void soap_step(const Settings& settings, Rates rates, Tensor& parameter, const Tensor& gradient,
               State& state);

State adamw_state(const Tensor& parameter);
void adamw_step(const Settings& settings, Rates rates, Tensor& parameter, const Tensor& gradient,
                State& state);
// With the constants of the rest: betas_rest, eps_rest.
void adamw_rest_step(const Settings& settings, Rates rates, Tensor& parameter,
                     const Tensor& gradient, State& state);

State ademamix_state(const Tensor& parameter);
void ademamix_step(const Settings& settings, Rates rates, Tensor& parameter, const Tensor& gradient,
                   State& state);

State adafactor_state(const Tensor& parameter);
void adafactor_step(const Settings& settings, Rates rates, Tensor& parameter,
                    const Tensor& gradient, State& state);

State lion_state(const Tensor& parameter);
void lion_step(const Settings& settings, Rates rates, Tensor& parameter, const Tensor& gradient,
               State& state);

State sgd_state(const Tensor& parameter);
void sgd_step(const Settings& settings, Rates rates, Tensor& parameter, const Tensor& gradient,
              State& state);

}  // namespace rode::reference
