// SPDX-License-Identifier: Apache-2.0
// The split form of Newton-Schulz (rules/split_rule.h) as CUDA computes it, for tests: e4m3
// operands, an iterate in fp16, sums in fp32. A product of two numbers of e4m3 is exact in fp32, so
// the BLAS multiplies what was rounded. It is slower than fp32.
#include <algorithm>
#include <cstdint>
#include <utility>

#include "backend/cpu/loops.h"
#include "backend/cpu/newton_schulz.h"
#include "backend/cpu/products.h"
#include "rules/newton_schulz_rule.h"
#include "rules/split_rule.h"

namespace rode::cpu {
namespace {

constexpr std::int64_t kSplitRows = 16;  // of a task

// f(i) for every row, in tasks of a few.
template <class F>
void for_split_rows(Team& team, std::int64_t rows, F&& f) {
  team.run((rows + kSplitRows - 1) / kSplitRows, [&](std::int64_t task) {
    for (std::int64_t i = task * kSplitRows; i < std::min(rows, (task + 1) * kSplitRows); ++i) f(i);
  });
}

float to_e4m3(float x, float scale) { return rules::e4m3_nearest(x * scale) / scale; }

struct SplitSpace {
  float *x, *y, *bytes, *o, *p, *sizes, *factors;
};

SplitSpace carve_split(const NsPlan& plan, float* workspace) {
  const std::int64_t mn = plan.rows * plan.cols, n = plan.short_side(), nn = n * n;
  float* small = workspace + 3 * mn;
  return {workspace,  workspace + mn, workspace + 2 * mn, small,
          small + nn, small + 2 * nn, small + 2 * nn + n};
}

class SplitForm {
 public:
  SplitForm(Team& team, const NsPlan& plan, float* workspace, double* partial)
      : team_(team), plan_(plan), space_(carve_split(plan, workspace)), partial_(partial) {
    keep(false);
  }

  void gram(int k) {
    const std::int64_t n = plan_.short_side();
    scales_ = rules::split_scales(plan_.coefficients, k, n);
    for_split_rows(team_, plan_.rows, [&](std::int64_t i) {
      for (std::int64_t j = 0; j < plan_.cols; ++j) {
        const std::int64_t at = i * plan_.cols + j;
        space_.bytes[at] = to_e4m3(space_.x[at], scales_.x);
      }
    });
    const std::int64_t along = plan_.tall() ? plan_.cols : 1,
                       across = plan_.tall() ? 1 : plan_.cols;
    for_split_rows(team_, n, [&](std::int64_t i) {
      double sum = 0;
      for (std::int64_t j = 0; j < plan_.long_side(); ++j) {
        const auto x = static_cast<double>(space_.x[i * across + j * along]);
        sum += x * x;
      }
      space_.sizes[i] = static_cast<float>(sum);
    });
    cpu::gram(team_, space_.bytes, plan_.rows, plan_.cols, plan_.symmetric, space_.o);
    for_split_rows(team_, n, [&](std::int64_t i) { space_.o[i * n + i] = space_.sizes[i]; });
  }
  double gram_squares() { return symmetric_squares(team_, space_.o, plan_.short_side(), partial_); }
  void advance(int, const rules::NsTriple& triple) {
    const std::int64_t n = plan_.short_side();
    const auto a = static_cast<float>(triple.a), b = static_cast<float>(triple.b),
               c = static_cast<float>(triple.c);
    float *o = space_.o, *p = space_.p;
    for_split_rows(team_, n, [&](std::int64_t i) {
      for (std::int64_t j = 0; j < n; ++j) {
        o[i * n + j] = i == j ? 0.0F : to_e4m3(o[i * n + j], scales_.o);
      }
    });
    square(team_, o, n, false, p);
    for_split_rows(team_, n, [&](std::int64_t i) {
      const float own = space_.sizes[i];
      space_.factors[i] = rules::split_diagonal(a, b, c, own, p[i * n + i]);
      for (std::int64_t j = 0; j < n; ++j) {
        const std::int64_t at = i * n + j;
        const float off = rules::split_off(b, c, own, space_.sizes[j], o[at], p[at]);
        p[at] = i == j ? 0.0F : to_e4m3(off, scales_.p);
      }
    });
    apply(team_, space_.bytes, p, plan_.rows, plan_.cols, space_.y);
    for_split_rows(team_, plan_.rows, [&](std::int64_t i) {
      for (std::int64_t j = 0; j < plan_.cols; ++j) {
        const std::int64_t at = i * plan_.cols + j;
        const float factor = space_.factors[plan_.tall() ? j : i];
        space_.y[at] = rules::fp16_nearest(factor * space_.x[at] + space_.y[at]);
      }
    });
    std::swap(space_.x, space_.y);
  }
  double along(const Sphere& sphere) {
    return inner_product(team_, space_.x, sphere, partial_, nullptr);
  }
  void project(const Sphere& sphere, double t, double factor) {
    reproject(team_, space_.x, sphere, t, factor);
    keep(false);
  }
  void keep(bool) {
    for_split_rows(team_, plan_.rows, [&](std::int64_t i) {
      for (std::int64_t at = i * plan_.cols; at < (i + 1) * plan_.cols; ++at) {
        space_.x[at] = rules::fp16_nearest(space_.x[at]);
      }
    });
  }
  float* iterate() const { return space_.x; }

 private:
  Team& team_;
  const NsPlan& plan_;
  SplitSpace space_;
  double* partial_;
  rules::SplitScales scales_{};
};

}  // namespace

std::size_t ns_fp8_workspace_floats(const NsPlan& plan) {
  const std::int64_t mn = plan.rows * plan.cols, n = plan.short_side();
  return static_cast<std::size_t>(3 * mn + 2 * n * n + 2 * n);
}

float* newton_schulz_fp8(Team& team, const NsPlan& plan, const Sphere* sphere, float* workspace,
                         double* partial) {
  SplitForm form(team, plan, workspace, partial);
  iterate(plan, sphere, form);
  return form.iterate();
}

}  // namespace rode::cpu
