// SPDX-License-Identifier: Apache-2.0
// Gradients of several processes in buckets: sums, calls, parameters without one.
#include "lab/train/gradient_buckets.h"

#include <gtest/gtest.h>

#include "ranks.h"
#include "support.h"

namespace rode::torch {
namespace {

using lab::GradientBuckets;

constexpr std::int64_t kSmallBucket = 400;  // 100 elements

// One bucket has the last three, the next one two, and the first is alone. The last is unused.
std::vector<at::Tensor> parameters(at::ScalarType type) {
  std::vector<at::Tensor> out;
  for (const std::vector<std::int64_t>& sizes :
       {std::vector<std::int64_t>{8, 8}, {10, 9}, {3}, {4}, {9, 10}, {5}}) {
    out.push_back(at::ones(sizes, type).set_requires_grad(true));
  }
  return out;
}

// Gradients of parameter i: all (i + 1) * factor.
void backward(const std::vector<at::Tensor>& all, double factor) {
  at::Tensor loss;
  for (std::size_t i = 0; i + 1 < all.size(); ++i) {
    const at::Tensor term = all[i].sum().to(at::kFloat) * (static_cast<double>(i + 1) * factor);
    loss = loss.defined() ? loss + term : term;
  }
  loss.backward();
}

const AddScenario kBuckets("buckets", [](const RankProcess& process) {
  const ProcessGroup group = meet(process.meeting);
  const double own = process.meeting.rank + 1;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const std::vector<at::Tensor> all = parameters(type);
    GradientBuckets buckets(all, group, kSmallBucket);
    const std::string name = type == at::kFloat ? "fp32 " : "bf16 ";
    process.write(name + "buckets", std::to_string(buckets.buckets()));
    const auto report = [&](const std::string& what) {
      std::string text;
      for (const at::Tensor& p : all) {
        if (!p.grad().defined()) {
          text += "none ";
          continue;
        }
        const at::Tensor wide = p.grad().to(at::kFloat);
        const bool even = wide.min().item<float>() == wide.max().item<float>();
        text += even ? std::to_string(static_cast<int>(wide.max().item<float>())) + " " : "uneven ";
      }
      process.write(name + what, text);
    };
    // Two parts: the first stays here.
    backward(all, own);
    report("first");
    const std::int64_t calls = group->calls();
    buckets.begin();
    backward(all, own);
    buckets.finish();
    report("both");
    process.write(name + "calls", std::to_string(group->calls() - calls));
    std::vector<at::Tensor> sums;
    for (const at::Tensor& p : all) sums.push_back(at::zeros_like(p.detach(), at::kFloat) + own);
    buckets.sum(sums);
    process.write(name + "sum", std::to_string(sums[4].max().item<float>()));
  }
});

TEST(GradientBuckets, AreSummedOverTheRanksInTheLastPart) {
  const RankFolder folder;
  const auto reports = run_ranks("buckets", {.size = 2}, folder);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    const RankReport& report = reports[rank];
    ASSERT_EQ(report.status, 0) << report["error"];
    for (const std::string name : {"fp32 ", "bf16 "}) {
      EXPECT_EQ(report[name + "buckets"], "3");
      EXPECT_EQ(report[name + "calls"], "3");
      EXPECT_EQ(report[name + "first"], rank == 0 ? "1 2 3 4 5 none " : "2 4 6 8 10 none ");
      EXPECT_EQ(report[name + "both"], "6 12 18 24 30 none ");
      EXPECT_EQ(report[name + "sum"], std::to_string(3.0F));
    }
  }
}

}  // namespace
}  // namespace rode::torch
