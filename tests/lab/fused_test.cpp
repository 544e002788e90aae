// SPDX-License-Identifier: Apache-2.0
// The fused operations against torch's own in double precision, on the GPU, or on the CPU where
// the program has the stand-in's loops for kernels.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/cuda.h>

#include "lab/models/autocast.h"
#include "lab/models/functions.h"
#include "lab/models/fused/kernels.h"
#include "lab/models/fused/ops.h"
#include "lab/models/fused/tensors.h"
#include "lab/models_support.h"

namespace rode::lab {
namespace {

using Tensors = std::vector<at::Tensor>;

// Of the parameters and the residual stream; of the products.
struct Types {
  at::ScalarType stream, branch;
};
constexpr Types kTypes[] = {
    {at::kFloat, at::kBFloat16}, {at::kFloat, at::kFloat}, {at::kBFloat16, at::kBFloat16}};

class ModelsCudaFused : public testing::Test {
 protected:
  void SetUp() override {
    if (fused::has_kernels(fused::Device::cpu)) return;
    device_ = at::kCUDA;
    if (!::torch::cuda::is_available()) GTEST_SKIP() << "no usable cuda device";
    if (!fused::has_kernels(fused::Device::cuda)) GTEST_SKIP() << "built without CUDA";
  }

  // Drawn on the CPU: the same everywhere. A value of `type`.
  at::Tensor random(at::IntArrayRef shape, at::ScalarType type, double scale = 1) {
    return (at::randn(shape, generator_) * scale).to(type).to(device_);
  }

  at::Device device_ = at::kCPU;
  at::Generator generator_ = at::detail::createCPUGenerator(7);
};

at::Tensor leaf(const at::Tensor& x) { return x.detach().requires_grad_(); }
// The exact operation on the same values.
at::Tensor exact(const at::Tensor& x) { return leaf(x.cpu().to(at::kDouble)); }

// A rounding to 8 bits and little else, or fp32 sums over a few thousand elements.
double tolerance(at::ScalarType type) { return type == at::kBFloat16 ? 4e-3 : 5e-5; }

// `inside`: the coarsest type of what lies between inputs and outputs.
void expect_near(const at::Tensor& found, const at::Tensor& expected, const std::string& what,
                 at::ScalarType inside = at::kFloat) {
  ASSERT_EQ(found.sizes(), expected.sizes()) << what;
  const at::Tensor wide = found.detach().cpu().to(at::kDouble);
  const double norm = expected.norm().item<double>();
  const double error = (wide - expected.detach()).norm().item<double>() / std::max(norm, 1e-30);
  EXPECT_LT(error, std::max(tolerance(found.scalar_type()), tolerance(inside))) << what;
}

Tensors grads_of(const Tensors& outputs, const Tensors& inputs, const Tensors& grads) {
  return ::torch::autograd::grad(outputs, inputs, grads);
}

Tensors as_double(const Tensors& tensors) {
  Tensors out;
  for (const at::Tensor& tensor : tensors) out.push_back(tensor.cpu().to(at::kDouble));
  return out;
}

// Both ways of one operation: outputs, then gradients of the inputs.
template <class Operation>
Tensors run(const Operation& operation, const Tensors& inputs, const Tensors& grads) {
  Tensors out = operation(inputs);
  const Tensors back = grads_of(out, inputs, grads);
  out.insert(out.end(), back.begin(), back.end());
  return out;
}

// Against `expected` on the same values in double, and twice with the same bits.
template <class Operation, class Expected>
void compare(const Operation& operation, const Expected& expected, const Tensors& values,
             const Tensors& grads, const std::string& what, at::ScalarType inside = at::kFloat) {
  Tensors inputs, exact_inputs;
  for (const at::Tensor& value : values) {
    inputs.push_back(leaf(value));
    exact_inputs.push_back(exact(value));
  }
  const Tensors found = run(operation, inputs, grads);
  const Tensors wanted = run(expected, exact_inputs, as_double(grads));
  ASSERT_EQ(found.size(), wanted.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    expect_near(found[i], wanted[i], what + ", tensor " + std::to_string(i), inside);
  }
  expect_equal(run(operation, inputs, grads), found);
}

std::string name_of(Types types) {
  return std::string(c10::toString(types.stream)) + "/" + c10::toString(types.branch);
}

TEST_F(ModelsCudaFused, NormAndSumHaveTheirGradients) {
  for (const Types types : kTypes) {
    for (const std::int64_t width : {8, 37, 768, 1000, 1536}) {
      for (const std::int64_t rows : {1, 5, 2300}) {
        for (const bool add : {false, true}) {
          Tensors values{random({rows, width}, types.stream), random({width}, types.stream) + 1};
          values[1] = values[1].to(types.stream);
          if (add) values.push_back(random({rows, width}, types.branch));
          // The sum is rounded where the stream is bf16: exact operands make it exact.
          if (add && types.stream == at::kBFloat16) {
            values[0] = (values[0] * 8).round() / 8;
            values[2] = (values[2] * 8).round() / 8;
          }
          const auto ours = [&](const Tensors& in) {
            const auto out =
                fused::add_rms_norm(in[0], add ? in[2] : at::Tensor(), in[1], 1e-6, types.branch);
            return Tensors{out.sum, out.norm};
          };
          const auto theirs = [&](const Tensors& in) {
            const at::Tensor sum = add ? in[0] + in[2] : in[0] * 1;
            return Tensors{sum, at::rms_norm(sum, in[1].sizes(), in[1], 1e-6)};
          };
          compare(ours, theirs, values,
                  {random({rows, width}, types.stream), random({rows, width}, types.branch)},
                  name_of(types) + " " + std::to_string(rows) + " x " + std::to_string(width));
        }
      }
    }
  }
}

TEST_F(ModelsCudaFused, NormStandsAnUnusedOutput) {
  const at::Tensor x = random({6, 40}, at::kFloat), w = random({40}, at::kFloat);
  const at::Tensor grad = random({6, 40}, at::kFloat);
  for (const int output : {0, 1}) {
    const auto ours = [&](const Tensors& in) {
      const auto out = fused::add_rms_norm(in[0], in[0] * 2, in[1], 1e-6, at::kFloat);
      return Tensors{(output == 0 ? out.sum : out.norm) + in[1] * 0};
    };
    const auto theirs = [&](const Tensors& in) {
      const at::Tensor sum = in[0] * 3;
      return Tensors{(output == 0 ? sum : at::rms_norm(sum, in[1].sizes(), in[1], 1e-6)) +
                     in[1] * 0};
    };
    compare(ours, theirs, {x, w}, {grad}, "output " + std::to_string(output));
  }
}

TEST_F(ModelsCudaFused, GateIsSwiglu) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const std::int64_t width : {1, 12, 2048, 2056, 5000}) {
      const auto ours = [](const Tensors& in) { return Tensors{fused::swiglu(in[0])}; };
      const auto theirs = [](const Tensors& in) {
        const Tensors halves = in[0].chunk(2, -1);
        return Tensors{at::silu(halves[0]) * halves[1]};
      };
      compare(ours, theirs, {random({3, 7, 2 * width}, type, 3)}, {random({3, 7, width}, type)},
              std::to_string(width));
    }
  }
}

TEST_F(ModelsCudaFused, ProjectionsGiveTheirParametersGradients) {
  for (const Types types : kTypes) {
    const std::int64_t in = 48, rows = 130;
    const Tensors values{random({2, rows, in}, types.branch), random({32, in}, types.stream, 0.1),
                         random({24, in}, types.stream, 0.1)};
    const auto copied = [&](const at::Tensor& w) { return w.to(types.branch).to(w.scalar_type()); };
    const Tensors rounded{values[0], copied(values[1]), copied(values[2])};
    const auto ours = [&](const Tensors& v) {
      const Tensors weights{v[1], v[2]};
      return Tensors{
          fused::project(v[0], weights, fused::joined_copies({weights}, types.branch)[0])};
    };
    const auto theirs = [](const Tensors& v) {
      return Tensors{at::linear(v[0], at::cat({v[1], v[2]}))};
    };
    compare(ours, theirs, rounded, {random({2, rows, 56}, types.branch)}, name_of(types),
            types.branch);
  }
}

TEST_F(ModelsCudaFused, QueriesAndKeysAreTurnedAndTurnedBack) {
  for (const Types types : kTypes) {
    for (const std::int64_t size : {6, 16, 64}) {
      const std::int64_t heads = 4, kv = 2, batch = 3, length = 11, width = heads * size;
      Tensors values{random({batch, length, width}, types.branch)};
      for (const std::int64_t n : {heads, kv, kv}) {
        values.push_back(
            random({n * size, width}, types.stream, 0.2).to(types.branch).to(types.stream));
      }
      for (const std::int64_t n : {heads, kv, kv}) {
        values.push_back(random({n * size}, types.stream).to(types.branch).to(types.stream));
      }
      RotaryTable table(size, 10000), exact_table(size, 10000);
      table.prepare(length, values[0]);
      exact_table.prepare(length, at::zeros({1}, at::kDouble));
      const auto ours = [&](const Tensors& v) {
        const Tensors p(v.begin() + 1, v.end());
        const auto copies =
            fused::joined_copies({{p[0], p[1], p[2]}, {p[3], p[4], p[5]}}, types.branch);
        const auto out = fused::project_qkv(v[0], p, copies[0], copies[1],
                                            {table.cos(), table.sin(), heads, kv});
        return Tensors{out[0], out[1], out[2]};
      };
      const auto theirs = [&](const Tensors& v) {
        return Tensors{exact_table.rotate(split_heads(at::linear(v[0], v[1], v[4]), heads)),
                       exact_table.rotate(split_heads(at::linear(v[0], v[2], v[5]), kv)),
                       split_heads(at::linear(v[0], v[3], v[6]), kv)};
      };
      // One dense, one as attention may leave it, one whose last dimension is not dense.
      const Tensors grads{random({batch, heads, length, size}, types.branch),
                          random({batch, length, kv, size}, types.branch).transpose(1, 2),
                          random({batch, kv, size, length}, types.branch).transpose(2, 3)};
      compare(ours, theirs, values, grads, name_of(types) + " " + std::to_string(size),
              types.branch);
    }
  }
}

TEST_F(ModelsCudaFused, CopiesAreTheRoundedWeights) {
  std::vector<Tensors> groups;
  for (std::int64_t i = 1; i < 70; ++i) {
    groups.push_back({random({i, 131}, at::kFloat), random({3, 131}, at::kFloat)});
    groups.push_back({random({9000 + i}, at::kFloat)});
  }
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const Tensors copies = fused::joined_copies(groups, type);
    for (std::size_t i = 0; i < groups.size(); ++i) {
      EXPECT_TRUE(at::equal(copies[i], at::cat(groups[i]).to(type))) << i;
    }
    const at::Tensor padded = fused::padded_copy(groups[10][0], type);
    EXPECT_EQ(padded.size(0), 64);
    EXPECT_TRUE(at::equal(padded.narrow(0, 0, 6), groups[10][0].to(type)));
    EXPECT_EQ(padded.narrow(0, 6, 58).abs().max().item<float>(), 0);
  }
}

TEST_F(ModelsCudaFused, CrossEntropyPutsTheGradientInTheLogitsPlace) {
  struct Shape {
    std::int64_t rows, vocabulary, stride;
  };
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const Shape shape : {Shape{3, 1, 1},
                              {5, 37, 37},
                              {5, 37, 64},
                              {2, 4099, 4160},
                              {3, 50257, 50304},
                              {2, 130001, 130048}}) {
      const std::string what =
          std::string(c10::toString(type)) + " " + std::to_string(shape.vocabulary);
      // The columns beyond the vocabulary are the largest: they must not count.
      at::Tensor logits = random({shape.rows, shape.stride}, type, 4);
      logits.narrow(1, shape.vocabulary, shape.stride - shape.vocabulary).fill_(1000);
      const at::Tensor targets = whole_wave({shape.rows}, shape.vocabulary, 3).to(device_);
      const at::Tensor wide = exact(logits.narrow(1, 0, shape.vocabulary));
      const at::Tensor expected =
          at::cross_entropy_loss(wide, targets.cpu(), {}, at::Reduction::None);
      const at::Tensor grad = grads_of({expected.sum() * 0.25}, {wide}, {})[0];
      const at::Tensor losses = at::empty({shape.rows}, logits.options().dtype(at::kFloat));
      const at::Tensor before = logits.clone();
      for (const bool gradient : {false, true}) {
        fused::cross_entropy({.logits = logits.data_ptr(),
                              .targets = targets.data_ptr<std::int64_t>(),
                              .losses = losses.data_ptr<float>(),
                              .rows = shape.rows,
                              .vocabulary = shape.vocabulary,
                              .stride = shape.stride,
                              .scale = 0.25F,
                              .gradient = gradient,
                              .type = fused::type_of(type)},
                             fused::stream_of(logits));
        const double error = (losses.cpu() - expected.detach()).abs().max().item<double>();
        EXPECT_LT(error, 2e-5 * (1 + expected.max().item<double>())) << what;
        EXPECT_TRUE(gradient || at::equal(logits, before)) << what;
      }
      expect_near(logits.narrow(1, 0, shape.vocabulary), grad, what);
      EXPECT_EQ(logits.narrow(1, shape.vocabulary, shape.stride - shape.vocabulary)
                    .abs()
                    .sum()
                    .item<float>(),
                0)
          << what;
    }
  }
}

TEST_F(ModelsCudaFused, LinearCrossEntropyIsThatOfAllLogits) {
  const at::Tensor hidden = random({2, 50, 32}, at::kFloat);
  const at::Tensor weight = random({301, 32}, at::kFloat, 0.3);
  const at::Tensor targets = whole_wave({2, 50}, 301, 3);
  for (const std::int64_t rows : {0, 7, 100}) {
    const auto ours = [&](const Tensors& in) {
      return Tensors{linear_cross_entropy(in[0], in[1], targets.to(device_), rows) * 3};
    };
    const auto theirs = [&](const Tensors& in) {
      return Tensors{
          at::cross_entropy_loss(at::linear(in[0], in[1]).view({100, 301}), targets.view({100})) *
          3};
    };
    compare(ours, theirs, {hidden, weight}, {at::ones({}, hidden.options())}, std::to_string(rows));
  }
}

// Whole models: a wrong seam between two operations shows here.
TEST_F(ModelsCudaFused, ModelsHaveTheLossAndGradientsOfDoublePrecision) {
  ModelSpec config = tiny("qwen2");
  config.width = 64;
  config.mlp_width = 96;
  config.init_deviation = 0.1;
  const Example data = example(config);
  const auto reference = make_model(config, 3);
  reference->module().to(at::kDouble);
  const Tensors expected = gradients(*reference, data);
  struct Way {
    bool autocast, checkpoint;
    at::ScalarType parameters;
    double most;
  };
  for (const Way way : {Way{false, false, at::kFloat, 1e-5},
                        {true, false, at::kFloat, 3e-2},
                        {true, true, at::kFloat, 3e-2},
                        {false, false, at::kBFloat16, 6e-2}}) {
    const auto model = make_model(config, 3);
    model->module().to(device_, way.parameters);
    model->set_checkpoint_activations(way.checkpoint);
    const Example here{data.input.to(device_), data.target.to(device_)};
    Tensors found;
    {
      const AutocastScope scope(device_.type(), {way.autocast, at::kBFloat16});
      found = gradients(*model, here);
    }
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      const double error = (found[i].cpu().to(at::kDouble) - expected[i]).norm().item<double>() /
                           expected[i].norm().item<double>();
      EXPECT_LT(error, way.most) << "tensor " << i << " way " << way.autocast << way.checkpoint;
      EXPECT_TRUE(i == 0 || found[i].scalar_type() == way.parameters) << i;
    }
    const at::NoGradGuard no_grad;
    const AutocastScope scope(device_.type(), {way.autocast, at::kBFloat16});
    EXPECT_LT(
        std::abs(model->loss(here.input, here.target).item<double>() - expected[0].item<double>()),
        way.most);
  }
}

}  // namespace
}  // namespace rode::lab
