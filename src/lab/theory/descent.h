// SPDX-License-Identifier: Apache-2.0
// What holds of a step in expectation, with means over runs that differ in their noise alone.
#pragma once

#include <span>
#include <string>

#include "lab/theory/check.h"
#include "lab/theory/constants.h"
#include "lab/theory/trace.h"

namespace rode::lab::theory {

// Each names the run in `what`. One run without noise is its own expectation.
Check radial_descent(std::span<const Trace> traces, const Constants& c, const std::string& what);
Check tangent_descent(std::span<const Trace> traces, const Constants& c, const std::string& what);
Check potential(std::span<const Trace> traces, const Constants& c, const std::string& what);
Check kinetic(std::span<const Trace> traces, const Constants& c, const std::string& what);
Check lyapunov(std::span<const Trace> traces, const Constants& c, const std::string& what);

}  // namespace rode::lab::theory
