// SPDX-License-Identifier: Apache-2.0
// gloo or NCCL: which of them a group gets, on all ranks alike, and NCCL's calls on one GPU.
#include "lab/train/gradient_buckets.h"
#include "ranks.h"
#include "support.h"

namespace rode::torch {
namespace {

std::string nccl_missing() {
  if (!is_nccl_available()) return "built without NCCL";
  return ::torch::cuda::is_available() ? "" : "no CUDA device";
}

// ---- The choice -------------------------------------------------------------------------------

template <GroupBackend first, GroupBackend others>
void report_backend(const RankProcess& process) {
  Meeting meeting = process.meeting;
  meeting.backend = meeting.rank == 0 ? first : others;
  if (::torch::cuda::is_available()) meeting.device = 0;  // of all ranks: NCCL takes one for each
  process.write("backend", meet(meeting)->backend());
}

using enum GroupBackend;
const AddScenario kAutomatic("automatic", report_backend<automatic, automatic>);
const AddScenario kAsked("asked for nccl", report_backend<nccl, nccl>);
const AddScenario kUnlike("asked unlike", report_backend<gloo, automatic>);

TEST(GroupBackends, AreGlooWhereRanksHaveNoGpuOfTheirOwn) {
  const RankFolder folder;
  for (const RankReport& report : run_ranks("automatic", {.size = 2}, folder)) {
    EXPECT_EQ(report.status, 0) << report["error"];
    EXPECT_EQ(report["backend"], "gloo");
  }
}

TEST(GroupBackends, AreRefusedOnAllRanksWhereNcclCannotBeHad) {
  const RankFolder folder;
  const std::string why = !::torch::cuda::is_available() ? "rank 0: no CUDA device was given"
                          : is_nccl_available()          ? "ranks 0 and 1 use the same GPU"
                                                : "rank 0: the program was built without NCCL";
  for (const RankReport& report : run_ranks("asked for nccl", {.size = 2}, folder)) {
    EXPECT_EQ(report.status, 1);
    EXPECT_TRUE(holds(report["error"], "backend = nccl is not available: " + why))
        << report["error"];
  }
}

TEST(GroupBackends, AreTheSameOnAllRanks) {
  const RankFolder folder;
  for (const RankReport& report : run_ranks("asked unlike", {.size = 2}, folder)) {
    EXPECT_EQ(report.status, 1);
    EXPECT_TRUE(holds(report["error"], "rank 1 has backend = auto, rank 0 has gloo"))
        << report["error"];
  }
}

// ---- Every call, with tensors of the host and of the device ------------------------------------

// On one rank: one GPU is then enough for NCCL.
template <at::DeviceType device>
void make_all_calls(const RankProcess& process) {
  Meeting meeting = process.meeting;
  if (device == at::kCUDA) meeting.device = 0;
  const ProcessGroup group = meet(meeting);
  process.write("backend", group->backend());
  process.write("sum", std::to_string(group->sum({1.5, 2})[1]));
  const auto on_device = at::TensorOptions().device(device);
  const Tensor here = at::ones({3}), there = at::ones({3}, on_device);
  group->add({here, there});
  group->broadcast({here, there});
  process.write("added", std::to_string((here + there.cpu()).sum().item<float>()));
  process.write("told", group->tell("words")[0] + group->tell("")[0] + group->collect("bytes")[0]);
  process.write("gathered", std::to_string(group->gather(here.view(at::kByte)).numel()));

  // A backward pass that is still at work when its buckets are sent.
  const Tensor weight = at::full({512, 512}, 1.0 / 512, on_device).set_requires_grad(true);
  const Tensor bias = at::ones({512}, on_device).set_requires_grad(true);
  lab::GradientBuckets buckets({weight, bias}, group, /*bucket_bytes=*/4096);
  const std::int64_t calls = group->calls();
  Tensor x = at::ones({512, 512}, on_device);
  for (int i = 0; i < 50; ++i) x = at::mm(x, weight) + 0 * bias;
  buckets.begin();
  (x.sum() / (512 * 512) + bias.sum()).backward();
  buckets.finish();
  process.write("buckets", std::to_string(group->calls() - calls));
  process.write("weight", std::to_string(std::lround(weight.grad().sum().item<float>())));
  process.write("bias", std::to_string(std::lround(bias.grad().sum().item<float>())));

  nn::Linear model(64, 96), alone(64, 96);
  model->to(device);
  alone->to(device);
  const ::torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < 2; ++i) alone->parameters()[i].copy_(model->parameters()[i]);
  try {
    RODE own(*model, rode::RodeOptions{}, {}, group);
    RODE other(*alone, rode::RodeOptions{});
    for (int t = 0; t < 5; ++t) {
      set_grads(model->parameters(), t);
      set_grads(alone->parameters(), t);
      own.step();
      other.step();
    }
    process.write("steps", at::equal(model->weight, alone->weight) ? "equal" : "different");
  } catch (const Error& error) {
    process.write("steps", error.what());  // an engine without CUDA
  }
}
const AddScenario kOnHost("all calls on the host", make_all_calls<at::kCPU>);
const AddScenario kOnGpu("all calls on a GPU", make_all_calls<at::kCUDA>);

void expect_all_calls(const std::string& scenario, const std::string& backend) {
  const RankFolder folder;
  const RankReport report = run_ranks(scenario, {.size = 1, .timeout_s = 120}, folder)[0];
  ASSERT_EQ(report.status, 0) << report["error"];
  EXPECT_EQ(report["backend"], backend);
  EXPECT_EQ(report["sum"], std::to_string(2.0));
  EXPECT_EQ(report["added"], std::to_string(6.0F));
  EXPECT_EQ(report["told"], "wordsbytes");
  EXPECT_EQ(report["gathered"], "12");
  EXPECT_EQ(report["buckets"], "2");
  // The loss is 1, and of degree 50 in elements of 1 / 512 each.
  EXPECT_EQ(report["weight"], std::to_string(50 * 512));
  EXPECT_EQ(report["bias"], "512");
  EXPECT_TRUE(report["steps"] == "equal" || holds(report["steps"], "without CUDA"))
      << report["steps"];
}

TEST(GroupBackends, CarryEveryCallByGloo) { expect_all_calls("all calls on the host", "gloo"); }

TEST(TorchCudaRanks, CarryEveryCallByNccl) {
  if (const std::string why = nccl_missing(); !why.empty()) GTEST_SKIP() << why;
  expect_all_calls("all calls on a GPU", "nccl");
}

}  // namespace
}  // namespace rode::torch
