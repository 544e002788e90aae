// SPDX-License-Identifier: Apache-2.0
// What holds of every single step: displacement, rotation, leakage, tracking error, smoothness.
#pragma once

#include <span>
#include <string>

#include "lab/theory/check.h"
#include "lab/theory/constants.h"
#include "lab/theory/trace.h"

namespace rode::lab::theory {

// Assumption 6 of the runs that meet it; a note names those that do not.
Check angle(const std::string& name, std::span<const Turn> turns, const std::string& what);
Check displacement(const Trace& trace);        // its norm, from radii and angle
Check displacement_parts(const Trace& trace);  // along U_t and across it
Check radial_update(const Trace& trace);
Check stored_radial(const Trace& trace);  // a_t = g^rho_t: only the last gradient is radial
Check rotation(const Trace& trace);
Check leakage(const Trace& trace, const Constants& c);
Check tracking_split(const Trace& trace);
Check tracking_step(const Trace& trace);  // for one path; the expectation is in descent.h
Check second_order(const Trace& trace, const Constants& c);
Check smoothness(const Trace& trace);
Check regularity(const Constants& c, const std::string& what);  // Assumption 4
Check noise_variance(std::span<const Trace> traces);            // Assumption 2

}  // namespace rode::lab::theory
