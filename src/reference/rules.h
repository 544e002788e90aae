// SPDX-License-Identifier: Apache-2.0
// The rules behind reference.h, one pair of functions per optimizer.
#pragma once

#include <vector>

#include "reference/reference.h"

namespace rode::reference {

// The rate and decay a rule uses: the matrices' or the rest's, the schedule's
// multiplier already in `lr`.
struct Rates {
  double lr = 0, weight_decay = 0;
};

State rode_state(const Settings& settings, const Treatment& treatment, const Tensor& parameter);
std::vector<Diagnostics> rode_step(const Settings& settings, const Treatment& treatment,
                                   Tensor& parameter, const Tensor& gradient, State& state,
                                   double multiplier);

State muon_state(const Settings& settings, const Treatment& treatment, const Tensor& parameter);
void muon_step(const Settings& settings, const Treatment& treatment, Rates rates, Tensor& parameter,
               const Tensor& gradient, State& state);

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
