// SPDX-License-Identifier: Apache-2.0
// The plan of the CUDA backend's products: batches, memory, programs.
#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "backend/cuda/newton_schulz/plan/plan.h"
#include "reference/matrix.h"
#include "rules/newton_schulz_rule.h"
#include "unit/ns_plan_support.h"

namespace rode::cuda {
namespace {

TEST(NsPlan, EveryMatrixIsInOneBatch) {
  const std::vector<NsMatrix> matrices = mixed();
  for (const std::size_t limit : {std::size_t{1}, 64 * kMega, 512 * kMega}) {
    std::vector<int> seen;
    for (const Batch& batch : plan_batches(matrices, {.workspace_limit = limit})) {
      seen.insert(seen.end(), batch.members.begin(), batch.members.end());
      if (batch.members.size() > 1) {
        EXPECT_LE(batch.bytes, limit + limit / 4 + 64 * 1024);
      }
    }
    std::sort(seen.begin(), seen.end());
    ASSERT_EQ(seen.size(), matrices.size());
    for (std::size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i], static_cast<int>(i));
  }
}

TEST(NsPlan, MemoryOfRolesIsApart) {
  for (const Reproject reproject : {Reproject::guarded, Reproject::final}) {
    std::vector<NsMatrix> matrices = mixed(reproject);
    for (std::size_t i = 1; i < matrices.size(); i += 2) matrices[i].dtype = NsDType::fp8;
    for (const Batch& batch : plan_batches(matrices, {.workspace_limit = 512 * kMega})) {
      std::map<std::size_t, std::size_t> spans;
      for (const Bucket& bucket : batch.buckets) {
        for (int role = 0; role < kRoles; ++role) {
          const RoleMemory& memory = bucket.memory[role];
          if (!memory.used || role == kRoleXGram || role == kRoleYGram) continue;
          EXPECT_GE(memory.stride, memory.cols);
          EXPECT_EQ(memory.stride * memory.bytes % 16, 0) << "TMA needs 16 bytes";
          EXPECT_EQ(memory.offset % 128, 0U);
          const auto bytes =
              static_cast<std::size_t>(memory.matrix_stride * bucket.count * memory.bytes);
          EXPECT_TRUE(spans.emplace(memory.offset, memory.offset + bytes).second);
        }
      }
      std::size_t end = 0;
      for (const auto& [from, to] : spans) {
        EXPECT_GE(from, end);
        end = to;
      }
      EXPECT_LE(end, batch.bytes);
    }
  }
}

TEST(NsPlan, GramFormOnlyWithoutInnerProjection) {
  EXPECT_FALSE(program_of(matrix(8960, 1536, Reproject::guarded)).gram);
  EXPECT_FALSE(program_of(matrix(8960, 1536, Reproject::every)).gram);
  EXPECT_TRUE(program_of(matrix(8960, 1536, Reproject::final)).gram);
  EXPECT_FALSE(program_of(matrix(8960, 128, Reproject::final)).gram);
  NsMatrix standard = matrix(8960, 1536, Reproject::final);
  standard.form = NsForm::standard;
  EXPECT_FALSE(program_of(standard).gram);
}

TEST(NsPlan, SmallSidesStayInFp32) {
  EXPECT_EQ(program_of(matrix(4096, 63)).dtype, NsDType::fp32);
  EXPECT_EQ(program_of(matrix(4096, 64)).dtype, NsDType::bf16);
}

// The products of a plan as products of whole matrices, in double.
reference::Matrix run_plan(const Batch& batch, const reference::Matrix& start) {
  using reference::Matrix;
  const bool tall = start.rows >= start.cols;
  std::map<int, Matrix> role;
  role[kRoleX] = start;
  for (const Product& product : batch.products) {
    const Matrix &a = role.at(product.a), &b = role.at(product.b);
    if (product.kind == Product::Kind::apply) {
      role[product.d] = tall ? reference::multiply(a, b) : reference::multiply(b, a);
      // The Gram matrix lay where the iterate is written.
      role.erase(product.d == kRoleX ? kRoleXGram : kRoleYGram);
      continue;
    }
    if (product.list == kGramList) {
      role[product.d] = tall ? reference::multiply(reference::transpose(a), a)
                             : reference::multiply(a, reference::transpose(a));
      role.erase(product.d == kRoleXGram ? kRoleX : kRoleY);
      continue;
    }
    Matrix d = reference::multiply(a, b);
    if (product.blend >= 0) {
      const rules::NsTriple p = rules::ns_triple(batch.program.coefficients, product.blend);
      const Matrix& c = role.at(product.c);
      for (std::size_t i = 0; i < d.rows; ++i) {
        for (std::size_t j = 0; j < d.cols; ++j) {
          d(i, j) = p.c * d(i, j) + p.b * c(i, j) + (i == j ? p.a : 0);
        }
      }
    }
    role[product.d] = d;
  }
  return role.at(batch.result);
}

reference::Matrix iterate(reference::Matrix x, Coefficients coefficients, int steps) {
  using namespace reference;
  const bool tall = x.rows >= x.cols;
  for (int k = 0; k < steps; ++k) {
    const rules::NsTriple p = rules::ns_triple(coefficients, k);
    const Matrix a = tall ? multiply(transpose(x), x) : multiply(x, transpose(x));
    Matrix factor = multiply(a, a);
    for (std::size_t i = 0; i < factor.rows; ++i) {
      for (std::size_t j = 0; j < factor.cols; ++j) {
        factor(i, j) = p.c * factor(i, j) + p.b * a(i, j) + (i == j ? p.a : 0);
      }
    }
    x = tall ? multiply(x, factor) : multiply(factor, x);
  }
  return x;
}

TEST(NsPlan, LaunchesAreNewtonSchulzInEitherForm) {
  const auto differ = [](const reference::Matrix& a, const reference::Matrix& b) {
    double most = 0;
    for (std::size_t i = 0; i < a.rows; ++i) {
      for (std::size_t j = 0; j < a.cols; ++j) most = std::max(most, std::abs(a(i, j) - b(i, j)));
    }
    return most;
  };
  for (const auto& [rows, cols] : std::vector<std::pair<int, int>>{{9, 5}, {5, 9}, {6, 6}}) {
    reference::Matrix start(static_cast<std::size_t>(rows), static_cast<std::size_t>(cols));
    for (std::size_t i = 0; i < start.rows; ++i) {
      for (std::size_t j = 0; j < start.cols; ++j) {
        start(i, j) = std::sin(static_cast<double>(7 * i + 3 * j * j + 1));
      }
    }
    start = reference::scale(0.9 / reference::norm(start), start);
    for (const NsForm form : {NsForm::standard, NsForm::gram}) {
      for (const Coefficients set :
           {Coefficients::jordan, Coefficients::polar_express, Coefficients::you}) {
        for (int steps = 1; steps <= 7; ++steps) {
          const NsMatrix matrix{
              .rows = rows, .cols = cols, .steps = steps, .coefficients = set, .form = form};
          const std::vector<Batch> batches = plan_batches({matrix}, {.workspace_limit = kMega});
          ASSERT_EQ(batches.size(), 1U);
          EXPECT_EQ(batches[0].program.gram, form == NsForm::gram);
          const double error = differ(run_plan(batches[0], start), iterate(start, set, steps));
          EXPECT_LT(error, 1e-10) << rows << "x" << cols << ", " << steps << " steps";
        }
      }
    }
  }
}

// The split form keeps its iterate in place: with both copies in e4m3 it has as many bytes as bf16,
// and depths of 128 bytes instead of 64 elements.
TEST(NsPlan, TheSplitFormNeedsNoMoreMemoryThanBf16) {
  for (const auto& [rows, cols] : {std::pair{8960, 1536}, {1536, 8960}, {768, 768}, {4500, 1333}}) {
    NsMatrix one = matrix(rows, cols);
    const Batch half = plan_batches({one}, {.workspace_limit = kMega}).front();
    one.dtype = NsDType::fp8;
    one.form = NsForm::gram;  // it has none
    const Batch split = plan_batches({one}, {.workspace_limit = kMega}).front();
    EXPECT_FALSE(split.program.gram);
    EXPECT_EQ(split.result, kRoleX);
    EXPECT_LT(static_cast<double>(split.bytes), 1.02 * static_cast<double>(half.bytes));
    const Bucket& bucket = split.buckets.front();
    const std::int64_t n = bucket.short_side(), m = bucket.long_side();
    EXPECT_EQ(bucket.memory[kRoleXLong].rows, n);
    EXPECT_EQ(bucket.memory[kRoleXLong].cols, m);
    EXPECT_EQ(bucket.memory[kRoleXShort].rows, m);
    EXPECT_EQ(bucket.memory[kRoleXShort].cols, n);
    EXPECT_EQ(split.products.size(), 15U);
    for (const ProductItem& item : split.lists[kGramList].items) {
      EXPECT_EQ(item.depth, (m + kTileDepthE4m3 - 1) / kTileDepthE4m3);
      EXPECT_EQ(item.order, OperandOrder::k_k);
    }
    for (const ProductItem& item : split.lists[kApplyList].items) {
      EXPECT_EQ(item.depth, (n + kTileDepthE4m3 - 1) / kTileDepthE4m3);
      EXPECT_EQ(item.order, bucket.tall() ? OperandOrder::k_k : OperandOrder::k_n);
    }
  }
}

TEST(NsPlan, DifferentProgramsDoNotShareABatch) {
  std::vector<NsMatrix> matrices = mixed();
  matrices[1].steps = 3;
  matrices[2].steps = 0;
  matrices[3].sphere = false;
  matrices[4].dtype = NsDType::fp32;
  matrices[5].reproject = Reproject::final;
  for (const Batch& batch : plan_batches(matrices, {.workspace_limit = 512 * kMega})) {
    for (const int index : batch.members) {
      EXPECT_EQ(program_of(matrices[static_cast<std::size_t>(index)]), batch.program);
    }
    if (batch.program.steps == 0) {
      EXPECT_TRUE(batch.products.empty());
      EXPECT_EQ(batch.result, kRoleX);
    }
  }
}

// A word would count the 65536th tile as part of the sum.
TEST(NsPlan, MatricesOfMoreTilesThanAWordCountsAreTold) {
  const auto counted = [](std::int64_t rows) {
    return plan_batches({matrix(rows, 128)}, {.workspace_limit = 512 * kMega}).front().counted;
  };
  EXPECT_TRUE(counted(8960));
  EXPECT_TRUE(counted(std::int64_t{65534} * kTileSide));
  EXPECT_FALSE(counted(std::int64_t{65535} * kTileSide));  // in pairs: 65536
}

}  // namespace
}  // namespace rode::cuda
