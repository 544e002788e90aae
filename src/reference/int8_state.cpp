// SPDX-License-Identifier: Apache-2.0
// Rounds a row's blocks to multiples of their largest magnitude over 127.
#include "reference/int8_state.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "reference/blocks.h"

namespace rode::reference {
namespace {

constexpr std::size_t kBlock = 256;

struct Rows {
  std::size_t rows = 1, cols = 0;
  std::size_t per_row() const { return (cols + kBlock - 1) / kBlock; }
};

// Of the tensor as it is stored: one without dimensions, or with one, is one row.
Rows rows_of(const Tensor& tensor, const Treatment& treatment) {
  const std::size_t count = tensor.data.size();
  if (tensor.shape.size() < 2 || count == 0) return {1, count};
  auto first = static_cast<std::size_t>(tensor.shape.front());
  if (treatment.experts) first *= static_cast<std::size_t>(tensor.shape[1]);
  const std::size_t cols =
      treatment.in_out ? static_cast<std::size_t>(tensor.shape.back()) : count / first;
  return {count / cols, cols};
}

}  // namespace

bool has_int8_state(const Settings& settings) {
  const auto found = settings.find("state_dtype");
  return found != settings.end() && found->second == "int8";
}

std::string quantized_key(const State& state) {
  for (const char* key : {"momentum", "exp_avg"})
    if (state.contains(key)) return key;
  return {};
}

void quantize(State& state, const Treatment& treatment) {
  const std::string key = quantized_key(state);
  Tensor& values = state.at(key);
  const Rows rows = rows_of(values, treatment);
  Tensor scales{{static_cast<std::int64_t>(rows.rows), static_cast<std::int64_t>(rows.per_row())},
                {}};
  for (std::size_t i = 0; i < rows.rows; ++i)
    for (std::size_t j = 0; j < rows.cols; j += kBlock) {
      double* block = values.data.data() + i * rows.cols + j;
      const std::size_t n = std::min(kBlock, rows.cols - j);
      double most = 0.0;
      for (std::size_t k = 0; k < n; ++k) most = std::max(most, std::fabs(block[k]));
      // Too small for a scale that fp32 can hold to full precision: all of it is zero.
      const bool zero = most < 127.0 * static_cast<double>(std::numeric_limits<float>::min());
      const double scale = zero ? 0.0 : most / 127.0;
      for (std::size_t k = 0; k < n; ++k) block[k] = zero ? 0.0 : std::nearbyint(block[k] / scale);
      scales.data.push_back(scale);
    }
  state[key + "_scale"] = scales;
}

void dequantize(State& state, const Treatment& treatment) {
  const std::string key = quantized_key(state);
  Tensor& values = state.at(key);
  const Rows rows = rows_of(values, treatment);
  const Tensor& scales = entry(state, (key + "_scale").c_str(), rows.rows * rows.per_row());
  for (std::size_t i = 0; i < rows.rows; ++i)
    for (std::size_t j = 0; j < rows.cols; ++j)
      values.data[i * rows.cols + j] *= scales.data[i * rows.per_row() + j / kBlock];
  state.erase(key + "_scale");
}

}  // namespace rode::reference
