// SPDX-License-Identifier: Apache-2.0
// Lemmas 1 to 3 and Theorem 2: the first-order model of a step, and a problem with the PL
// condition.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "lab/theory/check.h"
#include "lab/theory/trace.h"

namespace rode::lab::theory {

// S = t beta^t + (1 - beta) sum k beta^k, k < t: the sum and the closed form.
double lag_sum(double beta, int t);
double lag_closed_form(double beta, int t);
Check lag(const std::function<double(double, int)>& closed_form = lag_closed_form);
// The weights of past gradients in the momentum that an optimizer with momentum `used` stores:
// their sum at step t, against that for beta.
Check momentum_weights(double beta, int t, double used);

Check radial_alignment(const Trace& trace);     // Lemma 1
Check tracking_lag(const Trace& trace);         // ||E_t|| <= L_tan G lr beta / (1 - beta)
Check tangent_alignment(const Trace& trace);    // Lemma 2
Check alignment_synthesis(const Trace& trace);  // Lemma 3

// W_t+1 = W_t - lr H_t, of runs with lr_rho = lr and without noise on a problem whose f* is 0.
struct FirstOrder {
  std::vector<double> value = {};     // f(W_t)
  std::vector<double> slope = {};     // <G,H>
  std::vector<double> gradient = {};  // ||G||^2
  double direction_max = 0;           // G: the largest ||H||
  double smoothness = 0, lr = 0;
  // The largest alpha with <G,H> >= alpha ||G||^2 at every step outside the neighbourhood
  // K_err lr / (2 alpha mu) that it gives; 0 if there is none.
  double alignment(double mu) const;
  double neighbourhood(double alpha, double mu) const;
};
FirstOrder first_order(const Trace& trace);

Check pl_condition(const FirstOrder& run, double mu);
Check pl_alignment(const FirstOrder& run, double mu);  // Assumption 11: alpha > 0
Check pl_step(const FirstOrder& run, double mu);       // one step of the recursion
Check theorem_2(const FirstOrder& run, double mu);
Check theorem_2_scaling(std::span<const FirstOrder> runs);  // late values in lr

}  // namespace rode::lab::theory
