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

// Iteration k maps [0, input] into [0, output]: what the guard of RODE is made of.
struct Range {
  double input, output;
};
Range range(const std::string& coefficients, std::int64_t k);

// An additional divisor of the Frobenius-normalised start: Polar Express was fitted with a margin
// of 2 %.
double margin(const std::string& coefficients);

// The options `coefficients` and `ns_steps`, checked: the set of four has four iterations.
std::string coefficient_set(const Settings& settings);
std::int64_t iterations(const Settings& settings, const std::string& coefficients);

// The start of the set of four: X / sqrt(||X^T X||_F), which is its Schatten-4 norm; other sets
// leave X as it is. Never by less than n^-1/4 of the short side, which a start of norm 1 has at
// least: a start that eps kept short stays short.
Matrix scaled_start(const Matrix& x, const std::string& coefficients);

Matrix newton_schulz_step(const Matrix& x, const Quintic& p);

// All steps on a start of norm one or less.
Matrix newton_schulz(Matrix x, const std::string& coefficients, std::int64_t steps);

// NorMuon: the option `normalize`, and its update of a fan-out x fan-in matrix o, with one average
// per row. A matrix of zeros changes nothing.
bool normalizes_rows(const Settings& settings);
Matrix normalized_rows(const Matrix& o, double beta, double* averages);

}  // namespace rode::reference
