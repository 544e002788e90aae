// SPDX-License-Identifier: Apache-2.0
// The fused kernels on host memory by plain loops over the same equations: what surrounds the
// kernels (shapes, strides, types, autograd) is tested with them where there is no GPU.
#include <cmath>
#include <vector>

#include "lab/models/fused/kernels.h"
#include "lab/models/fused/math.h"
#include "rules/rounding.h"

namespace rode::lab::fused {
namespace {

float get(const void* data, Type type, std::int64_t i) {
  return type == Type::f32 ? static_cast<const float*>(data)[i]
                           : rules::bf16_to_float(static_cast<const std::uint16_t*>(data)[i]);
}

void put(void* data, Type type, std::int64_t i, float x) {
  if (type == Type::f32) {
    static_cast<float*>(data)[i] = x;
  } else {
    static_cast<std::uint16_t*>(data)[i] = rules::bf16_nearest(x);
  }
}

std::int64_t first_of(const HeadGrads& grads, std::int64_t batch, std::int64_t head,
                      std::int64_t position) {
  return batch * grads.batch_stride + head * grads.head_stride + position * grads.position_stride;
}

}  // namespace

bool has_kernels(Device device) { return device == Device::cpu; }

void rms_norm_forward(const RmsNormForward& a, void*) {
  for (std::int64_t row = 0; row < a.rows; ++row) {
    const std::int64_t at = row * a.width;
    const void* const sum = a.delta != nullptr ? a.sum : a.x;
    float squares = 0;
    for (std::int64_t i = at; i < at + a.width; ++i) {
      if (a.delta != nullptr) {
        put(a.sum, a.stream, i, get(a.x, a.stream, i) + get(a.delta, a.branch, i));
      }
      squares += get(sum, a.stream, i) * get(sum, a.stream, i);
    }
    const float r = rms_scale(squares, static_cast<float>(a.width), a.eps);
    a.scale[row] = r;
    for (std::int64_t i = 0; i < a.width; ++i) {
      put(a.y, a.branch, at + i, get(sum, a.stream, at + i) * (r * get(a.weight, a.stream, i)));
    }
  }
}

void rms_norm_backward(const RmsNormBackward& a, void*) {
  std::vector<float> dweight(static_cast<std::size_t>(a.width));
  for (std::int64_t row = 0; row < a.rows; ++row) {
    const std::int64_t at = row * a.width;
    const float r = a.scale[row];
    float dot = 0;
    for (std::int64_t i = 0; i < a.width; ++i) {
      const float dy = get(a.dy, a.branch, at + i), n = get(a.sum, a.stream, at + i) * r;
      dweight[static_cast<std::size_t>(i)] += dy * n;
      dot += dy * get(a.weight, a.stream, i) * n;
    }
    const float mean = dot / static_cast<float>(a.width);
    for (std::int64_t i = 0; i < a.width; ++i) {
      const float g = get(a.dy, a.branch, at + i) * get(a.weight, a.stream, i);
      float dx = rms_grad(g, get(a.sum, a.stream, at + i) * r, mean, r);
      if (a.dsum != nullptr) dx += get(a.dsum, a.stream, at + i);
      put(a.dx, a.stream, at + i, dx);
      if (a.ddelta != nullptr) put(a.ddelta, a.branch, at + i, dx);
    }
  }
  for (std::int64_t i = 0; i < a.width; ++i) {
    put(a.dweight, a.stream, i, dweight[static_cast<std::size_t>(i)]);
  }
}

void swiglu_forward(const SwigluForward& a, void*) {
  for (std::int64_t row = 0; row < a.rows; ++row) {
    for (std::int64_t i = 0; i < a.width; ++i) {
      const std::int64_t at = row * a.stride + i;
      put(a.out, a.type, row * a.width + i, swiglu(get(a.gate, a.type, at), get(a.up, a.type, at)));
    }
  }
}

void swiglu_backward(const SwigluBackward& a, void*) {
  for (std::int64_t row = 0; row < a.rows; ++row) {
    for (std::int64_t i = 0; i < a.width; ++i) {
      const std::int64_t at = row * a.stride + i;
      const GateGrads grads = swiglu_grad(get(a.gate, a.type, at), get(a.up, a.type, at),
                                          get(a.dout, a.type, row * a.width + i));
      put(a.dgate, a.type, at, grads.gate);
      put(a.dup, a.type, at, grads.up);
    }
  }
}

void rotary_forward(const RotaryForward& a, void*) {
  const std::int64_t half = a.size / 2;
  for (std::int64_t row = 0; row < a.rows; ++row) {
    for (std::int64_t head = 0; head < a.heads; ++head) {
      for (std::int64_t i = 0; i < half; ++i) {
        const std::int64_t at = row * a.stride + head * a.size + i;
        const std::int64_t angle = row % a.length * half + i;
        const Pair pair = turn(get(a.data, a.type, at), get(a.data, a.type, at + half),
                               a.cos[angle], a.sin[angle]);
        put(a.data, a.type, at, pair.first);
        put(a.data, a.type, at + half, pair.second);
      }
    }
  }
}

void rotary_backward(const RotaryBackward& a, void*) {
  const std::int64_t half = a.size / 2, turned = a.heads + a.kv_heads, all = turned + a.kv_heads;
  for (std::int64_t row = 0; row < a.rows; ++row) {
    const std::int64_t batch = row / a.length, position = row % a.length;
    for (std::int64_t head = 0; head < all; ++head) {
      const bool is_q = head < a.heads, is_k = !is_q && head < turned;
      const HeadGrads& from = is_q ? a.q : (is_k ? a.k : a.v);
      const std::int64_t skipped = is_q ? 0 : (is_k ? a.heads : turned);
      const std::int64_t in = first_of(from, batch, head - skipped, position);
      for (std::int64_t i = 0; i < half; ++i) {
        const std::int64_t angle = position * half + i;
        Pair pair{get(from.data, a.type, in + i), get(from.data, a.type, in + half + i)};
        if (head < turned) pair = turn(pair.first, pair.second, a.cos[angle], -a.sin[angle]);
        const std::int64_t to = (row * all + head) * a.size + i;
        put(a.out, a.type, to, pair.first);
        put(a.out, a.type, to + half, pair.second);
      }
    }
  }
}

void cross_entropy(const CrossEntropy& a, void*) {
  for (std::int64_t row = 0; row < a.rows; ++row) {
    const std::int64_t at = row * a.stride, target = a.targets[row];
    SoftmaxSum sum{-INFINITY, 0};
    for (std::int64_t i = 0; i < a.vocabulary; ++i) {
      sum = combine(sum, {get(a.logits, a.type, at + i), 1});
    }
    const float all = log_sum(sum);
    const bool known = target >= 0 && target < a.vocabulary;
    a.losses[row] = known ? all - get(a.logits, a.type, at + target) : NAN;
    if (!a.gradient) continue;
    for (std::int64_t i = 0; i < a.stride; ++i) {
      const float x = i < a.vocabulary ? get(a.logits, a.type, at + i) : -INFINITY;
      put(a.logits, a.type, at + i, logit_grad(x, all, i == target, a.scale));
    }
  }
}

void cast(const CastItem* items, std::int64_t count, Type from, Type to, void*) {
  for (std::int64_t item = 0; item < count; ++item) {
    for (std::int64_t i = 0; i < items[item].count; ++i) {
      put(items[item].target, to, i, get(items[item].source, from, i));
    }
  }
}

}  // namespace rode::lab::fused
