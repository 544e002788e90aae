// SPDX-License-Identifier: Apache-2.0
// The loop over the iterations of Newton-Schulz, which every form of it shares.
#pragma once

#include "backend/cpu/newton_schulz.h"
#include "rules/newton_schulz_rule.h"

namespace rode::cpu {

// Form has
//   void advance(int k, const rules::NsTriple& c)    X <- a X + b X^3 + c X^5
//   double along(const Sphere&)                      t = <X,U>
//   void project(const Sphere&, double t, double factor)    X <- factor (X - t U)
//   void keep(bool last)                             instead of project: X stays as it is
// The last iterate is not projected: that joins the write-back.
template <class Form>
void run_iterations(const NsPlan& plan, const Sphere* sphere, Form& form) {
  const bool projects = sphere != nullptr && plan.reproject_each;
  for (int k = 0; k < plan.steps; ++k) {
    form.advance(k, rules::ns_triple(plan.coefficients, k));
    const bool last = k + 1 == plan.steps;
    if (last || !projects) {
      form.keep(last);
      continue;
    }
    const double t = form.along(*sphere);
    form.project(*sphere, t, plan.guarded ? rules::guard_factor(t) : 1.0);
  }
}

}  // namespace rode::cpu
