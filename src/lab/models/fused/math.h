// SPDX-License-Identifier: Apache-2.0
// The equations of the fused kernels, element by element, for host and device: one copy, tested
// without a GPU. All in fp32, whatever the stored type.
#pragma once

#include <cmath>

#include "rules/host_device.h"

namespace rode::lab::fused {

// On the device by the hardware's exp2: two instructions in place of ten, off by a few 1e-7 of the
// result, where stored values have 8 bits.
RODE_HOST_DEVICE inline float exp_of(float x) {
#if defined(__CUDA_ARCH__)
  return __expf(x);
#else
  return std::exp(x);
#endif
}

// ---- RMSNorm: y = x r w with r = (mean(x^2) + eps)^-1/2 ---------------------------------
RODE_HOST_DEVICE inline float rms_scale(float sum_of_squares, float width, float eps) {
  return 1.0F / std::sqrt(sum_of_squares / width + eps);
}

// dx from g = dy w and n = x r, where `mean` is that of g n over the row.
RODE_HOST_DEVICE inline float rms_grad(float g, float n, float mean, float r) {
  return r * (g - n * mean);
}

// ---- SwiGLU: s = gate sigmoid(gate) up ---------------------------------------------------
RODE_HOST_DEVICE inline float sigmoid(float x) {
#if defined(__CUDA_ARCH__)
  return __fdividef(1.0F, 1.0F + __expf(-x));
#else
  return 1.0F / (1.0F + std::exp(-x));
#endif
}

RODE_HOST_DEVICE inline float swiglu(float gate, float up) { return gate * sigmoid(gate) * up; }

struct GateGrads {
  float gate, up;
};

RODE_HOST_DEVICE inline GateGrads swiglu_grad(float gate, float up, float grad) {
  const float s = sigmoid(gate);
  return {grad * up * s * (1.0F + gate * (1.0F - s)), grad * gate * s};
}

// ---- Rotary positions: a pair turned by an angle -----------------------------------------
struct Pair {
  float first, second;
};

// The way back, which is the gradient's, has -sin.
RODE_HOST_DEVICE inline Pair turn(float first, float second, float cos, float sin) {
  return {first * cos - second * sin, second * cos + first * sin};
}

// ---- Cross entropy: log sum exp(x) - x_target --------------------------------------------
// sum exp(x - max) over the elements seen so far; none: {-inf, 0}.
struct SoftmaxSum {
  float max, sum;
};

RODE_HOST_DEVICE inline SoftmaxSum combine(SoftmaxSum a, SoftmaxSum b) {
  const float max = a.max > b.max ? a.max : b.max;
  // Nothing seen in one of them: -inf - -inf is no number.
  const float on_a = a.sum == 0.0F ? 0.0F : a.sum * exp_of(a.max - max);
  const float on_b = b.sum == 0.0F ? 0.0F : b.sum * exp_of(b.max - max);
  return {max, on_a + on_b};
}

RODE_HOST_DEVICE inline float log_sum(SoftmaxSum s) { return s.max + std::log(s.sum); }

// (softmax(x) - [is the target]) scale.
RODE_HOST_DEVICE inline float logit_grad(float x, float log_sum, bool target, float scale) {
  return (exp_of(x - log_sum) - (target ? 1.0F : 0.0F)) * scale;
}

}  // namespace rode::lab::fused
