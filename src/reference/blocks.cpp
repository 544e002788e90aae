// SPDX-License-Identifier: Apache-2.0
// Cuts a tensor into fan-out x fan-in matrices and puts them back.
#include "reference/blocks.h"

#include <cstdint>
#include <string>

#include "rode/error.h"

namespace rode::reference {
namespace {

Matrix whole(const Tensor& tensor, bool in_out) {
  if (tensor.shape.size() < 2)
    throw Error(ErrorKind::shape, "reference",
                "a tensor of rank " + std::to_string(tensor.shape.size()) +
                    " came to a matrix rule; expected rank 2 or more; treat it as the rest");
  std::size_t rest = 1;
  for (std::size_t d = 1; d < tensor.shape.size(); ++d)
    rest *= static_cast<std::size_t>(tensor.shape[d]);
  Matrix matrix(static_cast<std::size_t>(tensor.shape[0]), rest);
  matrix.data = tensor.data;
  return in_out ? transpose(matrix) : matrix;
}

}  // namespace

std::vector<Matrix> split(const Tensor& tensor, const Treatment& treatment) {
  const Matrix matrix = whole(tensor, treatment.in_out);
  if (treatment.blocks.empty()) return {matrix};
  std::vector<Matrix> blocks;
  std::size_t first = 0;
  for (std::int64_t size : treatment.blocks) {
    if (size <= 0 || first + static_cast<std::size_t>(size) > matrix.rows) {
      first = matrix.rows + 1;  // reported below
      break;
    }
    Matrix block(static_cast<std::size_t>(size), matrix.cols);
    for (std::size_t i = 0; i < block.rows; ++i)
      for (std::size_t j = 0; j < block.cols; ++j) block(i, j) = matrix(first + i, j);
    blocks.push_back(block);
    first += block.rows;
  }
  if (first != matrix.rows)
    throw Error(ErrorKind::shape, "reference",
                "the blocks do not add up to the fan-out of " + std::to_string(matrix.rows) +
                    "; expected positive sizes that cover it exactly");
  return blocks;
}

void join(const std::vector<Matrix>& blocks, const Treatment& treatment, Tensor& tensor) {
  Matrix matrix;
  matrix.cols = blocks.front().cols;
  for (const Matrix& block : blocks) {
    matrix.rows += block.rows;
    matrix.data.insert(matrix.data.end(), block.data.begin(), block.data.end());
  }
  tensor.data = treatment.in_out ? transpose(matrix).data : matrix.data;
}

Tensor zeros_like(const Tensor& tensor) {
  return {tensor.shape, std::vector<double>(tensor.data.size(), 0.0)};
}

Tensor per_block(const std::vector<double>& values) {
  return {{static_cast<std::int64_t>(values.size())}, values};
}

Tensor per_row(const std::vector<Matrix>& blocks) {
  std::size_t rows = 0;
  for (const Matrix& block : blocks) rows += block.rows;
  return {{static_cast<std::int64_t>(rows)}, std::vector<double>(rows, 0.0)};
}

Tensor& entry(State& state, const char* key, std::size_t elements) {
  const auto found = state.find(key);
  if (found == state.end() || found->second.data.size() != elements)
    throw Error(ErrorKind::state_mismatch, "reference",
                "state '" + std::string(key) + "' is missing or has not " +
                    std::to_string(elements) + " elements; begin from initial_state()");
  return found->second;
}

double& scalar(State& state, const char* key) { return entry(state, key, 1).data[0]; }

}  // namespace rode::reference
