// SPDX-License-Identifier: Apache-2.0
// Shapes, blocks and jobs that several rules share.
#include "optim/rule_support.h"

#include <algorithm>

#include <fmt/format.h>

#include "rode/error.h"
#include "rode/optimizer.h"
#include "rode/stored_state.h"
#include "rules/int8_state.h"
#include "rules/splitmix64.h"

namespace rode {
namespace {

// FNV-1a: the random sequence of a parameter depends on its name, not on its place.
std::uint64_t hash_name(std::string_view name, std::uint64_t seed) {
  std::uint64_t hash = 0xcbf29ce484222325ULL ^ (seed * rules::kSplitMixStep);
  for (const char c : name) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  }
  return hash;
}

}  // namespace

bool has_key(const Settings& settings, std::string_view key) {
  return std::ranges::any_of(settings, [&](const auto& pair) { return pair.first == key; });
}

MatrixShape matrix_shape(std::string_view rule, const Subject& subject) {
  const Parameter& parameter = *subject.parameter;
  const Shape& shape = parameter.value.shape;
  if (shape.rank() < 2) {
    throw Error(ErrorKind::shape, rule,
                fmt::format("parameter '{}' has shape {}; the matrix rule needs rank >= 2; route "
                            "it to the rest",
                            parameter.name, to_string(shape)));
  }
  const bool in_out = parameter.layout == Layout::in_out;
  const int first = parameter.experts.value_or(false) ? 1 : 0;  // dimension of a matrix
  const std::int64_t count = first == 1 ? shape[0] : 1;
  const std::int64_t kept = in_out ? shape[shape.rank() - 1] : shape[first];
  std::int64_t other = 1;
  for (int axis = first; axis < shape.rank(); ++axis) {
    if (axis != (in_out ? shape.rank() - 1 : first)) other *= shape[axis];
  }
  // A BLAS counts in 32 bits; refused here, because a step must not fail halfway.
  if (kept > 0x7fffffff || other > 0x7fffffff) {
    throw Error(ErrorKind::unsupported, rule,
                fmt::format("parameter '{}' has shape {}; a matrix side may not exceed 2^31 - 1; "
                            "route it to the rest",
                            parameter.name, to_string(shape)));
  }
  return in_out ? MatrixShape{other, kept, true, count} : MatrixShape{kept, other, false, count};
}

Geometry stored_matrix(const Parameter& parameter) {
  const Shape& shape = parameter.value.shape;
  const std::int64_t count = shape.numel();
  if (shape.rank() < 2 || count == 0) return {1, count, count};
  const bool in_out = parameter.layout == Layout::in_out;
  const std::int64_t rows = parameter.experts.value_or(false) ? shape[0] * shape[1] : shape[0];
  const std::int64_t cols = in_out ? shape[shape.rank() - 1] : count / rows;
  return {count / cols, cols, cols};
}

std::vector<Block> matrix_blocks(std::string_view rule, std::string_view splits,
                                 const Subject& subject) {
  const MatrixShape shape = matrix_shape(rule, subject);
  const std::vector<std::int64_t> sizes =
      Splits(rule, splits).blocks(subject.parameter->name, shape.fan_out());
  std::vector<Block> blocks;
  for (std::int64_t expert = 0; expert < shape.count; ++expert) {
    const std::int64_t begin = expert * shape.rows * shape.cols;
    std::int64_t at = 0;
    for (const std::int64_t size : sizes) {
      const std::int64_t row = expert * shape.fan_out() + at;
      if (shape.in_out) {
        blocks.push_back({begin + at, {shape.rows, size, shape.cols}, size, shape.rows, row, true});
      } else {
        blocks.push_back({begin + at * shape.cols,
                          {size, shape.cols, shape.cols},
                          size,
                          shape.cols,
                          row,
                          false});
      }
      at += size;
    }
  }
  return blocks;
}

Shape per_block(const Subject& subject, const std::vector<Block>& blocks) {
  const auto count = static_cast<std::int64_t>(blocks.size());
  if (!subject.parameter->experts.value_or(false)) return {count};
  const std::int64_t experts = subject.parameter->value.shape[0];
  return experts == 0 || count == experts ? Shape{experts} : Shape{experts, count / experts};
}

void check_split_names(std::string_view rule, std::string_view splits,
                       const std::vector<std::string>& names) {
  const std::string pattern = Splits(rule, splits).unmatched(names);
  if (pattern.empty()) return;
  throw Error(ErrorKind::invalid_argument, rule,
              fmt::format("option 'splits': pattern '{}' matches no parameter that the matrix rule "
                          "steps",
                          pattern));
}

DType moment_dtype(const StorageOptions& storage) {
  return storage.state_dtype == StateDType::bf16 ? DType::bf16 : DType::f32;
}

void append_momentum(std::vector<StateSpec>& specs, std::string_view key, const Subject& subject,
                     const StorageOptions& storage) {
  const Shape& shape = subject.parameter->value.shape;
  if (storage.state_dtype != StateDType::int8) {
    specs.push_back({std::string(key), shape, moment_dtype(storage)});
    return;
  }
  const Geometry matrix = stored_matrix(*subject.parameter);
  specs.push_back({std::string(key), shape, DType::i8});
  specs.push_back({scale_key(key), {matrix.rows, rules::scales_per_row(matrix.cols)}, DType::f32});
}

void check_scale_blocks(std::string_view rule, const Subject& subject,
                        const std::vector<Block>& blocks, const StorageOptions& storage) {
  if (storage.state_dtype != StateDType::int8) return;
  for (const Block& block : blocks) {
    const std::int64_t column =
        block.geometry.stride == 0 ? 0 : block.offset % block.geometry.stride;
    if (block.geometry.cols == block.geometry.stride || column % rules::kScaleBlock == 0) continue;
    throw Error(ErrorKind::unsupported, rule,
                fmt::format("option 'splits': parameter '{}' is stored fan-in x fan-out and is "
                            "split at column {}, within a block of int8 state; with "
                            "state_dtype=int8 choose sizes that are multiples of {}, or set "
                            "state_dtype=bf16",
                            subject.parameter->name, column, rules::kScaleBlock));
  }
}

void append_low_bits(std::vector<StateSpec>& specs, const Subject& subject,
                     const StorageOptions& storage) {
  const TensorView& value = subject.parameter->value;
  if (value.dtype == DType::bf16 && storage.rounding == Rounding::exact) {
    specs.push_back({"low_bits", value.shape, DType::u16});
  }
}

Shape per_row(std::string_view rule, const Subject& subject) {
  const MatrixShape shape = matrix_shape(rule, subject);
  const bool batch = subject.parameter->experts.value_or(false);
  return batch ? Shape{shape.count, shape.fan_out()} : Shape{shape.fan_out()};
}

void append_row_averages(std::vector<StateSpec>& specs, std::string_view rule,
                         const Subject& subject, Normalize normalize) {
  const Shape rows = per_row(rule, subject);
  if (normalize == Normalize::rows) specs.push_back({"row_avg_sq", rows, DType::f32});
}

RowAverages row_averages(const StateSlots& state, const Block& block) {
  auto* data = static_cast<float*>(state.find("row_avg_sq"));
  return {data == nullptr ? nullptr : data + block.first_row, block.in_out};
}

void fill_base(JobBase& job, const Subject& subject, const StorageOptions& storage,
               const StateSlots& state, std::int64_t offset) {
  const Parameter& parameter = *subject.parameter;
  job.parameter = subject.index;
  job.offset = offset;
  job.first_element = parameter.first_element;
  job.weight.dtype = parameter.value.dtype;
  job.weight.rounding = storage.rounding;
  job.weight.sequence = hash_name(parameter.name, storage.seed);
  job.state_rounding = storage.state_rounding;
  auto* low = static_cast<std::uint16_t*>(state.find("low_bits"));
  job.weight.low_bits = low == nullptr ? nullptr : low + offset;
  if (parameter.value.data != nullptr) {
    job.weight.data = static_cast<std::byte*>(parameter.value.data) +
                      static_cast<std::size_t>(offset) * size_of(parameter.value.dtype);
  }
}

Moments moments(const StateSlots& state, std::string_view key, std::int64_t cols,
                std::int64_t offset) {
  Moments out{nullptr, state.dtype(key)};
  auto* data = static_cast<std::byte*>(state.find(key));
  if (data != nullptr) out.data = data + static_cast<std::size_t>(offset) * size_of(out.dtype);
  if (out.dtype != DType::i8) return out;
  out.scale_stride = rules::scales_per_row(cols);
  auto* scales = static_cast<float*>(state.find(scale_key(key)));
  if (scales == nullptr || cols == 0) return out;
  out.scales = scales + offset / cols * out.scale_stride + offset % cols / rules::kScaleBlock;
  return out;
}

std::string slow_average_advice(std::string_view rule, const StorageOptions& storage,
                                std::span<const double> betas) {
  const bool int8 = storage.state_dtype == StateDType::int8;
  if (storage.state_dtype == StateDType::fp32) return {};
  if (int8 && storage.state_rounding == StateRounding::stochastic) return {};
  const double least = int8 ? 0x1.0p-12 : 0x1.0p-8;
  for (const double beta : int8 ? betas.first(1) : betas) {
    if (1 - beta >= least) continue;
    return fmt::format(
        "[{0}] state_dtype = {1} with an average of beta {2}: rounded to {1} it "
        "stops changing before it has settled; use beta <= {3:.4g} or state_dtype=fp32",
        rule, int8 ? "int8" : "bf16", beta, 1 - least);
  }
  return {};
}

void check_ns_steps(std::string_view rule, Coefficients set, int steps) {
  if (set != Coefficients::four || steps == rules::own_ns_steps(set)) return;
  throw Error(ErrorKind::invalid_argument, rule,
              fmt::format("option 'ns_steps' = {} with coefficients = 'four', whose four "
                          "polynomials were fitted together; leave ns_steps unset, set ns_steps=4, "
                          "or choose coefficients=jordan, polar_express or you",
                          steps));
}

void check_newton_schulz(std::string_view rule, const NewtonSchulzOptions& options,
                         const EngineOptions& engine) {
  const auto [form, dtype] = options;
  if (form == NsForm::gram && !engine.batched) {
    throw Error(ErrorKind::unsupported, rule,
                "option 'ns_form' = 'gram' with one matrix after the other (batched = false, "
                "--loop); without batches there is the standard form only; set ns_form=auto or "
                "ns_form=standard, or leave batches on");
  }
  if (form == NsForm::gram && dtype == NsDType::fp8) {
    throw Error(ErrorKind::unsupported, rule,
                "option 'ns_form' = 'gram' with ns_dtype = 'fp8'; e4m3 products have the standard "
                "form only, whose diagonals they keep exact; set ns_form=auto or ns_form=standard, "
                "or another ns_dtype");
  }
  if (engine.device == Device::cuda) return;
  if (form == NsForm::gram && dtype == NsDType::bf16) {
    throw Error(ErrorKind::invalid_argument, rule,
                "option 'ns_form' = 'gram' with ns_dtype = 'bf16'; the Gram form needs fp32 "
                "products on the CPU; set ns_form=standard or ns_dtype=fp32");
  }
  if (dtype == NsDType::fp16) {
    throw Error(ErrorKind::unsupported, rule,
                "option 'ns_dtype' = 'fp16'; fp16 products exist on CUDA only; use fp32 or bf16 "
                "on the CPU");
  }
}

void check_row_radius(std::string_view rule, std::string_view what, std::string_view remedy,
                      const EngineOptions& engine) {
  if (!engine.phases) return;
  throw Error(ErrorKind::unsupported, rule,
              fmt::format("{} with EngineOptions::phases; radii of rows are written as they are "
                          "computed; {}, or call step() without phases",
                          what, remedy));
}

}  // namespace rode
