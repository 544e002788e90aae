// SPDX-License-Identifier: Apache-2.0
// The quintic Newton-Schulz step and its published coefficient sets.
#pragma once

#include <cstdint>
#include <string>

#include "reference/matrix.h"
#include "reference/reference.h"

namespace rode::reference {

struct Quintic {
  double a, b, c;  // x -> a x + b x^3 + c x^5 on every singular value
};

// The triple of iteration k; past the end of a set its last one repeats.
Quintic quintic(const std::string& coefficients, std::int64_t k);

// What the Frobenius-normalised start is divided by, beside its norm: Polar
// Express was fitted with a margin of 2 %.
double margin(const std::string& coefficients);

// The option `coefficients`, checked.
std::string coefficient_set(const Settings& settings);

Matrix newton_schulz_step(const Matrix& x, const Quintic& p);

// All steps on a start whose singular values do not exceed one.
Matrix newton_schulz(Matrix x, const std::string& coefficients, std::int64_t steps);

// NorMuon: the option `normalize`, and its update of a fan-out x fan-in matrix o, with one average
// per row. A matrix of zeros changes nothing.
bool normalizes_rows(const Settings& settings);
Matrix normalized_rows(const Matrix& o, double beta, double* averages);

}  // namespace rode::reference
