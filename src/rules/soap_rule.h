// SPDX-License-Identifier: Apache-2.0
// SOAP's element-wise equation in the rotated basis (recurrence: rode/optim/soap.h).
#pragma once

#include <cmath>
#include <cstdint>

#include "rules/host_device.h"

namespace rode::rules {

struct SoapConstants {
  double lr, weight_decay, beta1, beta2, eps;
  int precondition_frequency;
  std::int64_t max_precond_dim;
};

// Whether a dimension of this extent has a factor and a basis; the others stay as they are.
inline bool has_basis(std::int64_t extent, std::int64_t max_precond_dim) {
  return extent <= max_precond_dim;
}

// lr sqrt(1 - beta2^k) / (1 - beta1^k); k counts the gradients after the first.
RODE_HOST_DEVICE inline double soap_step_size(const SoapConstants& c, double multiplier,
                                              std::int64_t k) {
  const double time = static_cast<double>(k);
  return multiplier * c.lr * std::sqrt(1 - std::pow(c.beta2, time)) / (1 - std::pow(c.beta1, time));
}

// Every precondition_frequency-th k the basis follows the factors.
RODE_HOST_DEVICE inline bool soap_changes_basis(const SoapConstants& c, std::int64_t k) {
  return k > 0 && k % c.precondition_frequency == 0;
}

// W' = w * W + n * N: the decay comes after the step and applies to both terms.
struct SoapWrite {
  double w, n;
};

RODE_HOST_DEVICE inline SoapWrite soap_write(const SoapConstants& c, double multiplier,
                                             std::int64_t k) {
  const double keep = 1 - multiplier * c.lr * c.weight_decay;
  return {keep, -keep * soap_step_size(c, multiplier, k)};
}

// What all elements share in a step.
struct SoapCoefficients {
  float beta1, rest1, beta2, rest2, eps;
};

RODE_HOST_DEVICE inline SoapCoefficients soap_coefficients(const SoapConstants& c) {
  return {static_cast<float>(c.beta1), static_cast<float>(1 - c.beta1), static_cast<float>(c.beta2),
          static_cast<float>(1 - c.beta2), static_cast<float>(c.eps)};
}

// An entry of a factor: L <- beta2 L + (1 - beta2) GG.
RODE_HOST_DEVICE inline float soap_average(const SoapCoefficients& c, float old, float fresh) {
  return c.beta2 * old + c.rest2 * fresh;
}

// Advances the moments with the rotated gradient and returns the normalised direction. Numbers and
// not the struct of them, which keeps a compiler from vectorising the last elements of a loop.
RODE_HOST_DEVICE inline float soap_element(float beta1, float rest1, float beta2, float rest2,
                                           float eps, float g, float& m, float& v) {
  m = beta1 * m + rest1 * g;
  v = beta2 * v + rest2 * g * g;
  return m / (std::sqrt(v) + eps);
}

}  // namespace rode::rules
