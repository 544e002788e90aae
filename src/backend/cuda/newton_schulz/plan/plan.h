// SPDX-License-Identifier: Apache-2.0
// Plans Newton-Schulz for many matrices: batches, memory, products, launches and the tiles of
// each launch. Host code without CUDA, so that its tests run everywhere.
//
// Matrices that run the same program (coefficients, steps, form, projection, element type) share
// batches; a batch is as many of them as the workspace holds, in the order given. Matrices of one
// shape within a batch are a bucket, addressed by one tensor map per role.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "rode/optim/common.h"
#include "rode/optim/rode.h"

namespace rode::cuda {

struct NsMatrix {
  std::int64_t rows = 0, cols = 0;
  int steps = 0;  // 0: the start is the result, stored in fp32
  Coefficients coefficients = Coefficients::jordan;
  NsDType dtype = NsDType::automatic;
  NsForm form = NsForm::automatic;
  Reproject reproject = Reproject::final;  // where `sphere`
  bool sphere = false;                     // U is given: project as asked, report t and xx
};

inline constexpr int kTileSide = 128;
inline constexpr int kTileDepth = 64;       // of K, per load
inline constexpr int kTileDepthE4m3 = 128;  // the same of bytes
inline constexpr int kClusterSize = 2;      // tiles of an item

// How the rows of an item's operands lie in memory: along K each (X P, A A, X X^T of a wide X),
// along M and N (X^T X of a tall X), or the left along K and the right along N (P X of a wide X,
// where the product's operands change places).
enum class OperandOrder : int { k_k, m_n, k_n };

// What a matrix's memory is used for.
enum Role : int {
  kRoleX,  // the iterate, in X and Y in turn
  kRoleY,
  kRoleU,      // the direction of the weights
  kRoleXGram,  // the Gram matrix, where the next iterate will be written: in X,
  kRoleYGram,  // or in Y
  kRoleP,      // a I + b G + c G^2
  kRoleT,      // the Gram form alone: G P,
  kRoleQ,      // and the product of the factors so far, in Q and R in turn
  kRoleR,
  // The split form alone (rules/split_rule.h; P is e4m3 there, and the iterate stays in X):
  kRoleXLong,    // X in e4m3, rows along the long side,
  kRoleXShort,   // and along the short one
  kRoleO,        // off the diagonal of the Gram matrix, e4m3
  kRoleD,        // the diagonal, a vector of fp32,
  kRoleF,        // the factors a + diag P',
  kRoleSquares,  // and the parts of the diagonal, one per tile along the long side
  kRoles
};

// A tile of 128 x 128 of one of a bucket's matrices.
struct ProductTile {
  int in_bucket = 0;  // which of its matrices: the third coordinate of a TMA box
  int matrix = 0;     // over all
  int row = 0;        // in tiles; kNoTile: nothing is stored
};
inline constexpr int kNoTile = -1;

// Two tiles of one column, one for each CTA of a cluster. Of one matrix they share their right
// operand; of two matrices (symmetric products alone) each CTA loads its own.
struct alignas(16) ProductItem {
  int bucket = 0;
  int col_tile = 0;
  int depth = 0;    // loads along K
  int partial = 0;  // index of the first tile's sums; the other's follow
  OperandOrder order = OperandOrder::k_k;
  int mirror = 0;  // tiles off the diagonal are written twice
  int phase = 0;   // within the launch
  int need = 0;    // tiles that the phase before must have written of the same matrix
  ProductTile tiles[kClusterSize];
  int unused[2] = {0, 0};
};
static_assert(sizeof(ProductItem) == 64);

struct TileRange {  // of a matrix's partial sums
  int first = 0, count = 0;
};
// Tiles that a matrix's word can count (hopper/reproject.cuh).
inline constexpr int kMostCounted = (1 << 16) - 1;

enum class Projection : int {
  none,     // D = X P
  measure,  // and the sums of D with U
  every,    // and D <- D - t U, matrix by matrix
  guarded,  // and the same times rules::guard_factor()
};

// A work list: items of cluster c are items[lists[c]] .. items[lists[c + 1]].
struct WorkList {
  std::vector<ProductItem> items;
  std::vector<int> lists;
  int clusters() const { return static_cast<int>(lists.size()) - 1; }
};

// Products of one kind share a list.
enum List : int { kGramList, kSquareList, kApplyList, kLists };

// One product of every matrix of a batch: D = A B, a polynomial, or the next iterate.
struct Product {
  enum class Kind { symmetric, apply } kind = Kind::symmetric;
  Role a = kRoleX, b = kRoleX, c = kRoleX, d = kRoleX;
  int blend = -1;  // iteration whose polynomial is formed; -1: D = A B
  Projection projection = Projection::none;
  int iteration = 0;  // of an applying product: the last one that it completes; of the split
                      // form: the one that it is part of
  List list = kGramList;
};

// One launch of the Hopper kernel: an applying product, or symmetric products in a row, its
// phases, which wait for each other matrix by matrix. A product by itself has the list of its kind.
inline constexpr int kMostPhases = 10;
struct Launch {
  int first = 0, count = 1;  // of Batch::products
  int list = 0;              // of Batch::lists
};

// rows x cols of `stride` elements, `matrix_stride` from matrix to matrix, at `offset` bytes. An
// element has `bytes`.
struct RoleMemory {
  std::size_t offset = 0;
  std::int64_t rows = 0, cols = 0, stride = 0, matrix_stride = 0;
  bool used = false;
  int bytes = 2;
};

struct Bucket {
  std::int64_t rows = 0, cols = 0;
  int count = 0;
  RoleMemory memory[kRoles];
  bool tall() const { return rows >= cols; }
  std::int64_t short_side() const { return tall() ? cols : rows; }
  std::int64_t long_side() const { return tall() ? rows : cols; }
};

// What all matrices of a batch have in common.
struct Program {
  int steps = 0;
  Coefficients coefficients = Coefficients::jordan;
  NsDType dtype = NsDType::bf16;  // fp32, bf16, fp16 or fp8 (the split form)
  bool gram = false;
  Reproject reproject = Reproject::final;
  bool sphere = false;
  bool operator==(const Program&) const = default;
};

struct Batch {
  Program program;
  std::vector<int> members;                   // indices of the matrices
  std::vector<std::pair<int, int>> position;  // of each member: bucket, in_bucket
  std::vector<Bucket> buckets;
  std::vector<TileRange> tiles;  // of each member
  int partials = 0;
  std::vector<WorkList> lists;  // by kind, then those of launches with several phases
  bool hold = false;            // tiles may be held until their matrix's sum is known
  bool counted = false;         // no matrix has more tiles than its word can count
  std::vector<Product> products;
  std::vector<Launch> launches;
  Role result = kRoleX;  // where the last iterate is
  std::size_t bytes = 0;
};

struct PlanOptions {
  std::size_t workspace_limit = 0;  // a program that fits into 5/4 of it is one batch
  int clusters = 66;
  bool symmetric = true;  // false: full products
};

std::vector<Batch> plan_batches(const std::vector<NsMatrix>& matrices, const PlanOptions& options);

// The program of one matrix: resolves `automatic`. Full products have the standard form alone.
Program program_of(const NsMatrix& matrix, bool symmetric = true);

// Of the iterate: fp16 in the split form.
NsDType iterate_dtype(NsDType dtype);
std::size_t element_bytes(NsDType dtype);

}  // namespace rode::cuda
