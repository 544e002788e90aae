// SPDX-License-Identifier: Apache-2.0
// A small model with values that depend only on names, and the parts that tests compare.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <map>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "rode/rode.h"
#include "rules/rounding.h"
#include "support/tested_optimizer.h"

namespace rode::test {

struct Spec {
  std::string name;
  Shape shape;
};

// Two matrices, a vector and an embedding: both treatments of every optimizer.
inline std::vector<Spec> small_model() {
  return {{"h.0.weight", {12, 8}},
          {"h.1.weight", {8, 20}},
          {"norm.weight", {9}},
          {"wte.weight", {10, 8}}};
}

// Values that bf16 represents exactly, so that fp32 and bf16 models can start equal. They depend
// on the name and the draw, not on what else the model holds.
inline std::vector<float> values_of(std::string_view name, std::int64_t count, std::uint64_t draw,
                                    double scale) {
  std::uint64_t seed = draw * 1000003 + 17;
  for (const char c : name) seed = seed * 131 + static_cast<unsigned char>(c);
  std::mt19937_64 engine(seed);
  std::vector<float> out(static_cast<std::size_t>(count));
  for (float& x : out) {
    const double uniform = static_cast<double>(engine() >> 11) * 0x1p-53;
    x = rules::bf16_to_float(rules::bf16_nearest(static_cast<float>(scale * (2 * uniform - 1))));
  }
  return out;
}

// Memory of one tensor, f32 or bf16.
class Tensor {
 public:
  Tensor(Shape shape, DType dtype, const std::vector<float>& values)
      : shape_(shape), dtype_(dtype), bytes_(values.size() * size_of(dtype)) {
    for (std::size_t i = 0; i < values.size(); ++i) set(i, values[i]);
  }
  void set(std::size_t i, float x) {
    if (dtype_ == DType::f32) {
      std::memcpy(bytes_.data() + i * sizeof(x), &x, sizeof(x));
    } else {
      const std::uint16_t half = rules::bf16_nearest(x);
      std::memcpy(bytes_.data() + i * sizeof(half), &half, sizeof(half));
    }
  }
  float get(std::size_t i) const {
    if (dtype_ == DType::f32) {
      float x = 0;
      std::memcpy(&x, bytes_.data() + i * sizeof(x), sizeof(x));
      return x;
    }
    std::uint16_t half = 0;
    std::memcpy(&half, bytes_.data() + i * sizeof(half), sizeof(half));
    return rules::bf16_to_float(half);
  }
  std::size_t count() const { return bytes_.size() / size_of(dtype_); }
  std::vector<float> floats() const {
    std::vector<float> out(count());
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = get(i);
    return out;
  }
  TensorView view() { return {bytes_.data(), shape_, dtype_}; }
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  Shape shape_;
  DType dtype_;
  std::vector<std::byte> bytes_;
};

class Model {
 public:
  explicit Model(std::vector<Spec> specs = small_model(), DType weights = DType::f32,
                 DType grads = DType::f32)
      : specs_(std::move(specs)) {
    for (const Spec& spec : specs_) {
      const std::int64_t count = spec.shape.numel();
      values_.emplace_back(spec.shape, weights, values_of(spec.name, count, 0, 0.5));
      grads_.emplace_back(spec.shape, grads, values_of(spec.name, count, 1, 0.1));
    }
  }

  std::vector<Parameter> parameters() {
    std::vector<Parameter> out;
    for (std::size_t i = 0; i < specs_.size(); ++i) {
      out.push_back({.name = specs_[i].name, .value = values_[i].view(), .grad = grads_[i].view()});
    }
    return out;
  }
  // Gradients of step t, counted from 0.
  void draw(std::int64_t t) {
    for (std::size_t i = 0; i < specs_.size(); ++i) {
      const auto fresh = values_of(specs_[i].name, specs_[i].shape.numel(),
                                   static_cast<std::uint64_t>(t) + 1, 0.1);
      for (std::size_t j = 0; j < fresh.size(); ++j) grads_[i].set(j, fresh[j]);
    }
  }
  void run(Optimizer& optimizer, int steps) {
    for (int i = 0; i < steps; ++i) {
      draw(optimizer.steps_done());
      optimizer.step();
    }
  }

  std::size_t size() const { return specs_.size(); }
  Tensor& value(std::size_t i) { return values_[i]; }
  Tensor& grad(std::size_t i) { return grads_[i]; }
  std::map<std::string, std::vector<std::byte>> weights() const {
    std::map<std::string, std::vector<std::byte>> out;
    for (std::size_t i = 0; i < specs_.size(); ++i) out[specs_[i].name] = values_[i].bytes();
    return out;
  }

 private:
  std::vector<Spec> specs_;
  std::vector<Tensor> values_, grads_;
};

using Bytes = std::map<std::string, std::vector<std::byte>>;

inline Bytes state_of(const rode::Optimizer& optimizer) {
  Bytes out;
  for (const TensorEntry& entry : optimizer.state()) {
    const auto* data = static_cast<const std::byte*>(entry.view.data);
    out[entry.name].assign(data, data + entry.view.bytes());
  }
  return out;
}

// Everything a step may change, byte by byte.
struct Snapshot {
  Bytes weights, state;
  std::int64_t steps;

  Snapshot(const Model& model, const rode::Optimizer& optimizer)
      : weights(model.weights()), state(state_of(optimizer)), steps(optimizer.steps_done()) {}
};

// Names what differs instead of printing all bytes.
inline void expect_same(const Bytes& a, const Bytes& b) {
  EXPECT_EQ(a.size(), b.size());
  for (const auto& [name, bytes] : a) {
    const auto other = b.find(name);
    ASSERT_TRUE(other != b.end()) << name << " is missing";
    EXPECT_TRUE(bytes == other->second) << name << " differs";
  }
}

inline void expect_same(const Snapshot& a, const Snapshot& b) {
  expect_same(a.weights, b.weights);
  expect_same(a.state, b.state);
  EXPECT_EQ(a.steps, b.steps);
}

// `f` throws rode::Error of this kind, and the message holds all these parts.
template <class F>
void expect_error(F&& f, ErrorKind kind, std::initializer_list<std::string_view> parts) {
  try {
    f();
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    const std::string_view message = error.what();
    EXPECT_EQ(to_string(error.kind()), to_string(kind)) << message;
    for (const std::string_view part : parts) {
      EXPECT_NE(message.find(part), std::string_view::npos)
          << "'" << part << "' is not in: " << message;
    }
  }
}

// Every optimizer under its own name, and variants with different state or code paths.
struct Variant {
  std::string label;
  Method method;
};

inline const std::vector<Variant>& variants() {
  static const std::vector<Variant> table = [] {
    std::vector<Variant> out;
    for (const OptimizerInfo& info : list_optimizers()) {
      out.push_back({info.name, Method::by_name(info.name)});
    }
    const auto add = [&](std::string label, std::string_view name, const Settings& settings) {
      out.push_back({std::move(label), Method::by_name(name, settings)});
    };
    add("rode_adaptive", "rode", {{"radius", "adaptive"}});
    add("rode_snr_fixed", "rode-snr", {{"radius", "fixed"}});
    add("rode_snr_adaptive", "rode-snr", {{"radius", "adaptive"}, {"nesterov", "true"}});
    add("rode_split", "rode-snr", {{"splits", "h.0.*=3"}});
    add("rode_gram", "rode", {{"reproject", "final"}, {"ns_form", "gram"}, {"ns_dtype", "fp32"}});
    add("rode_retraction", "rode", {{"direction", "retraction"}, {"conditioner", "none"}});
    add("rode_still", "rode", {{"direction", "fixed"}});
    add("rode_rows_split", "rode", {{"normalize", "rows"}, {"splits", "h.0.*=3"}});
    add("muon_rows", "muon-normproj", {{"normalize", "rows"}});
    add("mars_rows", "mars-m", {{"normalize", "rows"}});
    add("muon_hyperball", "muon", {{"constraint", "hyperball"}});
    add("muon_split", "muon-normproj", {{"splits", "h.1.*=2+6"}});
    add("muon_cautious", "muon", {{"cautious_decay", "true"}, {"weight_decay", "0.5"}});
    add("adamw_cautious", "adamw", {{"cautious_decay", "true"}, {"weight_decay", "0.5"}});
    add("lion_cautious", "lion", {{"cautious_decay", "true"}, {"weight_decay", "5"}});
    add("soap_often", "soap", {{"precondition_frequency", "2"}, {"max_precond_dim", "10"}});
    add("ademamix_warm", "ademamix", {{"warmup_steps", "6"}});
    return out;
  }();
  return table;
}

class EveryVariant : public ::testing::TestWithParam<Variant> {};

inline std::string variant_name(const ::testing::TestParamInfo<Variant>& info) {
  std::string name = info.param.label;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

inline void PrintTo(const Variant& variant, std::ostream* out) { *out << variant.label; }

}  // namespace rode::test
