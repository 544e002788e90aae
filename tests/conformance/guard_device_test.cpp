// SPDX-License-Identifier: Apache-2.0
// The guard on a GPU: 3600 adversarial matrices per coefficient set and type of the products'
// operands. Every iterate that enters an iteration is read back as stored, after its reprojection
// (with e4m3, whose products correct it as they read it, the test does so too), and its largest
// singular value is compared with the range of that iteration.
//
// docs/numerics.md rests its claim on what this prints (bench/results/h200_guard.txt).
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "backend/cuda/newton_schulz/newton_schulz.h"
#include "backend/cuda_check.h"
#include "rules/newton_schulz_rule.h"
#include "support/adversarial.h"
#include "support/backend_under_test.h"
#include "support/tridiagonal.h"

namespace rode {
namespace {

using testing::Case;
using testing::Extents;
using testing::Gaussian;
using testing::largest_singular_value;
using testing::Values;

// Half precision begins at a short side of 64. With edges, and with more than one tile.
const std::vector<Extents> kLarge = {{64, 64},  {96, 64},   {64, 160}, {128, 128}, {129, 65},
                                     {72, 200}, {160, 160}, {256, 64}, {100, 90},  {136, 264}};

struct GuardedSet {
  const char* name;
  Coefficients set;
  NsDType dtype;
  // What a singular value may exceed the range of its iteration by. 1.25 of the published
  // polynomial leaves no room for rounding, but it diverges only from 1.2637 on.
  double rounding;
  CudaProducts products = CudaProducts::automatic;
  // And that of the last iteration, before which the guard has no margin; 0: by the margin of the
  // others.
  double last = 0;
};

template <class T>
void copy_in(void* to, const Extents& shape, std::int64_t stride, const Values& values) {
  std::vector<T> rows(static_cast<std::size_t>(shape[0] * stride), T(0.0F));
  for (std::int64_t i = 0; i < shape[0] * shape[1]; ++i) {
    rows[static_cast<std::size_t>(i / shape[1] * stride + i % shape[1])] =
        T(values[static_cast<std::size_t>(i)]);
  }
  cuda::check(cudaMemcpy(to, rows.data(), rows.size() * sizeof(T), cudaMemcpyHostToDevice), "copy");
}

void put(void* to, NsDType dtype, const Extents& shape, std::int64_t stride, const Values& values) {
  switch (dtype) {
    case NsDType::bf16: return copy_in<__nv_bfloat16>(to, shape, stride, values);
    case NsDType::fp16: return copy_in<__half>(to, shape, stride, values);
    default: return copy_in<float>(to, shape, stride, values);
  }
}

template <class T>
std::vector<double> copy_out(const void* from, const Extents& shape, std::int64_t stride) {
  std::vector<T> rows(static_cast<std::size_t>(shape[0] * stride));
  cuda::check(cudaMemcpy(rows.data(), from, rows.size() * sizeof(T), cudaMemcpyDeviceToHost),
              "copy");
  std::vector<double> values;
  for (std::int64_t i = 0; i < shape[0] * shape[1]; ++i) {
    values.push_back(static_cast<double>(
        static_cast<float>(rows[static_cast<std::size_t>(i / shape[1] * stride + i % shape[1])])));
  }
  return values;
}

std::vector<double> get(const void* from, NsDType dtype, const Extents& shape,
                        std::int64_t stride) {
  switch (dtype) {
    case NsDType::bf16: return copy_out<__nv_bfloat16>(from, shape, stride);
    case NsDType::fp16: return copy_out<__half>(from, shape, stride);
    default: return copy_out<float>(from, shape, stride);
  }
}

// Calls f(i) for every i below `count`, on all cores.
template <class F>
void for_all(std::size_t count, F&& f) {
  std::atomic<std::size_t> next = 0;
  std::vector<std::jthread> threads;
  for (unsigned t = 0; t < std::max(1U, std::thread::hardware_concurrency()); ++t) {
    threads.emplace_back([&] {
      for (std::size_t i = next++; i < count; i = next++) f(i);
    });
  }
}

// Of each case: its singular values beside the ranges of the iterations that they enter, and the
// largest of them.
struct Reached {
  double of_range = 0, value = 0;
};

void worse(Reached& reached, double of_range, double value) {
  // NaN is the worst.
  if (!(of_range <= reached.of_range)) reached.of_range = std::isnan(of_range) ? 1e30 : of_range;
  if (!(value <= reached.value)) reached.value = std::isnan(value) ? 1e30 : value;
}

// factor (X - t U), as hopper/quantize.cu makes it before the iteration that follows iteration `k`.
void correct(const GuardedSet& given, Reproject reproject, int k, const std::vector<double>& u,
             std::vector<double>& x) {
  double t = 0;
  for (std::size_t i = 0; i < x.size(); ++i) t += x[i] * u[i];
  const rules::NsGuard guard =
      rules::ns_guard(given.set, k, rules::own_ns_steps(given.set), given.dtype);
  const double factor = reproject == Reproject::guarded ? rules::guard_factor(guard, t) : 1.0;
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = factor * (x[i] - t * u[i]);
}

std::vector<Reached> run(const GuardedSet& given, Reproject reproject,
                         const std::vector<Case>& cases) {
  const int steps = rules::own_ns_steps(given.set);
  std::vector<cuda::NsMatrix> matrices;
  for (const Case& c : cases) {
    matrices.push_back({.rows = c.shape[0],
                        .cols = c.shape[1],
                        .steps = steps,
                        .coefficients = given.set,
                        .dtype = given.dtype,
                        .form = NsForm::standard,
                        .reproject = reproject,
                        .sphere = true});
  }
  const cuda::NewtonSchulz ns(matrices, std::size_t{1} << 30, true, given.products);
  const std::vector<float> ones(cases.size(), 1.0F);
  cuda::check(cudaMemcpy(ns.start_scale(), ones.data(), ones.size() * sizeof(float),
                         cudaMemcpyHostToDevice),
              "copy");
  std::vector<Reached> reached(cases.size());
  for (std::size_t batch = 0; batch < ns.batches().size(); ++batch) {
    const std::vector<int>& members = ns.batches()[batch];
    for_all(members.size(), [&](std::size_t k) {
      const Case& c = cases[static_cast<std::size_t>(members[k])];
      const cuda::NsSlot& slot = ns.slot(members[k]);
      put(slot.start, slot.dtype, c.shape, slot.stride, testing::start_of(c, given.set));
      put(slot.direction, slot.dtype == NsDType::fp32 ? NsDType::fp32 : NsDType::fp16, c.shape,
          slot.stride, testing::unit(c.weight));
    });
    const bool split = given.dtype == NsDType::fp8;
    EXPECT_EQ(ns.slot(members.front()).dtype, split ? NsDType::fp16 : given.dtype);
    int applied = 0;
    bool pass = false;  // the reprojection is one of its own
    const auto judge = [&] {
      cuda::check(cudaDeviceSynchronize(), "Newton-Schulz");
      // The last iteration may begin beyond its range by what rounding adds.
      const double most = given.last > 0 ? given.last : rules::guard_margin(given.set, given.dtype);
      const double last = applied + 1 == steps ? most : 0;
      const double range = rules::ns_range(given.set, applied).input * (1 + last);
      for_all(members.size(), [&](std::size_t k) {
        const auto i = static_cast<std::size_t>(members[k]);
        const cuda::NsSlot& slot = ns.slot(members[k]);
        const auto& shape = cases[i].shape;
        std::vector<double> x =
            get(applied % 2 == 0 ? slot.start : slot.between, slot.dtype, shape, slot.stride);
        if (split) {
          correct(given, reproject, applied - 1,
                  get(slot.direction, NsDType::fp16, shape, slot.stride), x);
        }
        const double value = largest_singular_value(shape, x);
        worse(reached[i], value / range, value);
      });
    };
    ns.run(batch, nullptr, [&](const char* launch) {
      const std::string name = launch;
      if (name == "projection") {
        if (applied < steps) judge();
      } else if (name.starts_with("apply")) {
        ++applied;
        pass = name == "apply, measured" && !split;
        if (!pass && (!split || applied < steps)) judge();
      }
    });
    EXPECT_EQ(applied, steps);
  }
  return reached;
}

class GuardedSets : public ::testing::TestWithParam<GuardedSet> {};

TEST_P(GuardedSets, KeepSingularValuesInRangeOnTheDevice) {
  RODE_CUDA_ONLY("guard_test.cpp follows the CPU's iteration");
  const GuardedSet& given = GetParam();
  const std::vector<Extents>& shapes = given.dtype == NsDType::fp32 ? testing::kSmall : kLarge;
  constexpr int kRounds = 24, kAttempts = 5;
  constexpr double kAgainst[] = {0.25, 0.5, 1.0, 2.0, 4.0}, kFresh[] = {0.0, 0.7};
  std::uint64_t seed = 100;
  int cases = 0, outside = 0, escaped = 0, unguarded = 0;
  Reached worst;
  const auto account = [&](const std::vector<Reached>& all) {
    for (const Reached& reached : all) {
      ++cases;
      outside += reached.of_range <= 1 + given.rounding ? 0 : 1;
      worse(worst, reached.of_range, reached.value);
    }
  };
  // The worst mixture out of several for each shape and round, then small changes to it: cases
  // that random draws would miss.
  struct Best {
    double of_range = -1, against = 1, fresh = 0;
  };
  std::vector<Best> best(static_cast<std::size_t>(kRounds) * shapes.size());
  const auto draw = [&](const std::vector<Best>& wanted) {
    std::vector<Case> drawn(wanted.size());
    for_all(wanted.size(), [&](std::size_t i) {
      Gaussian gaussian(seed + i);
      const auto [rank, strength] = testing::low_rank_of(static_cast<int>(i / shapes.size()));
      drawn[i] = testing::adversarial(gaussian, shapes[i % shapes.size()], rank, strength,
                                      wanted[i].against, wanted[i].fresh);
    });
    seed += wanted.size();
    return drawn;
  };
  for (const double against : kAgainst) {
    for (const double fresh : kFresh) {
      const std::vector<Case> drawn = draw(std::vector<Best>(best.size(), Best{0, against, fresh}));
      const std::vector<Reached> reached = run(given, Reproject::guarded, drawn);
      account(reached);
      for (std::size_t i = 0; i < best.size(); ++i) {
        if (reached[i].of_range > best[i].of_range) best[i] = {reached[i].of_range, against, fresh};
      }
      if (against != 1.0) continue;
      for (const Reached& free : run(given, Reproject::every, drawn)) {
        ++unguarded;
        escaped += free.of_range <= 1 + given.rounding ? 0 : 1;
      }
    }
  }
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    Gaussian changes(seed++);
    std::vector<Best> tried;
    for (const Best& from : best) {
      tried.push_back(
          {0, from.against * (0.7 + 0.6 * changes.uniform()), from.fresh * changes.uniform()});
    }
    const std::vector<Case> drawn = draw(tried);
    const std::vector<Reached> reached = run(given, Reproject::guarded, drawn);
    account(reached);
    for (std::size_t i = 0; i < best.size(); ++i) {
      if (reached[i].of_range > best[i].of_range) {
        best[i] = {reached[i].of_range, tried[i].against, best[i].fresh};
      }
    }
  }
  std::printf(
      "    %-20s %d cases: largest singular value %.6f, at most %.6f of its range; %d outside by "
      "more than rounding (%g); without the guard %d of %d\n",
      given.name, cases, worst.value, worst.of_range, outside, given.rounding, escaped, unguarded);
  EXPECT_EQ(outside, 0);
  EXPECT_GE(cases, 3600);
  EXPECT_GT(escaped, 0) << "no case is adversarial: the test cannot fail";
}

constexpr double kRounding = 1e-5;  // fp32 iterates of unit scale
constexpr double kJordanHalf = 5e-3;
constexpr double kHalfIterate = 0x1p-10;  // e4m3: the iterate is fp16, and read back unrounded
// Of the third iteration, 1 % beyond whose range it ends 11 % beyond its output; 12 % beyond its
// own, the last one ends at 2.46 instead of 1.207.
constexpr double kFourE4m3 = 0.01, kLastOfFour = 0.12;

INSTANTIATE_TEST_SUITE_P(
    Device, GuardedSets,
    ::testing::Values(
        GuardedSet{"jordan_fp32", Coefficients::jordan, NsDType::fp32, kRounding},
        GuardedSet{"polar_express_fp32", Coefficients::polar_express, NsDType::fp32, kRounding},
        GuardedSet{"you_fp32", Coefficients::you, NsDType::fp32, kRounding},
        GuardedSet{"four_fp32", Coefficients::four, NsDType::fp32, kRounding},
        GuardedSet{"jordan_bf16", Coefficients::jordan, NsDType::bf16, kJordanHalf},
        GuardedSet{"polar_express_bf16", Coefficients::polar_express, NsDType::bf16, 0},
        GuardedSet{"you_bf16", Coefficients::you, NsDType::bf16, 0},
        GuardedSet{"four_bf16", Coefficients::four, NsDType::bf16, 0},
        GuardedSet{"jordan_fp16", Coefficients::jordan, NsDType::fp16, kJordanHalf},
        GuardedSet{"polar_express_fp16", Coefficients::polar_express, NsDType::fp16, 0},
        GuardedSet{"you_fp16", Coefficients::you, NsDType::fp16, 0},
        GuardedSet{"four_fp16", Coefficients::four, NsDType::fp16, 0},
        GuardedSet{"jordan_fp8", Coefficients::jordan, NsDType::fp8, kHalfIterate},
        GuardedSet{"polar_express_fp8", Coefficients::polar_express, NsDType::fp8, kHalfIterate},
        GuardedSet{"you_fp8", Coefficients::you, NsDType::fp8, kHalfIterate},
        GuardedSet{"four_fp8", Coefficients::four, NsDType::fp8, kFourE4m3, CudaProducts::automatic,
                   kLastOfFour},
        // The kernels of other chips.
        GuardedSet{"four_bf16_mma", Coefficients::four, NsDType::bf16, 0,
                   CudaProducts::tensor_cores}),
    [](const auto& instance) { return std::string(instance.param.name); });

}  // namespace
}  // namespace rode
