// SPDX-License-Identifier: Apache-2.0
// What a step works on: one job per matrix (or block) or tensor, with every pointer and
// constant it needs. Jobs are built once; between steps only bound pointers, `active`
// and constants that the user changes move, so a backend may capture a step as a graph.
#pragma once

#include <cstdint>
#include <deque>
#include <variant>
#include <vector>

#include "rode/optim/common.h"
#include "rode/tensor_view.h"
#include "rules/adafactor_rule.h"
#include "rules/cost.h"
#include "rules/element_rules.h"
#include "rules/gate.h"
#include "rules/matrix_step.h"
#include "rules/muon_rule.h"
#include "rules/rode_rule.h"
#include "rules/row_radius_rule.h"
#include "rules/soap_rule.h"

namespace rode {

// Weights as stored: f32, or bf16 with one of three ways of writing back.
struct Weights {
  void* data = nullptr;
  DType dtype = DType::f32;
  std::uint16_t* low_bits = nullptr;  // rounding = exact
  Rounding rounding = Rounding::nearest;
  std::uint64_t sequence = 0;  // of random bits: seed and parameter name
};

struct Grads {
  const void* data = nullptr;
  DType dtype = DType::f32;
};

// Parameter-sized state: f32, bf16, or i8 with scales (rules/int8_state.h).
struct Moments {
  void* data = nullptr;
  DType dtype = DType::f32;
  float* scales = nullptr;        // of the block at `data`
  std::int64_t scale_stride = 0;  // scales per row of the stored matrix
};

// Squared norms of the weight before the step, of the gradient and of the update.
struct StepSums {
  double ww = 0, gg = 0, dd = 0;
};

struct JobBase {
  std::size_t parameter = 0;       // index over all groups
  std::int64_t offset = 0;         // of the first element within the parameter (blocks)
  std::int64_t first_element = 0;  // of the parameter, where it is a part of a larger tensor
  Weights weight;
  Grads grad;
  StateRounding state_rounding = StateRounding::nearest;
  // A gradient whose squared norm exceeds it is refused: the rule could not keep its squares,
  // or its sums, in fp32.
  double most_gg = rules::kMomentumLimit;
  bool active = true;              // false: this step leaves the job alone
  bool finite = true;              // measure: the gradient is, and within most_gg
  bool weight_finite = true;       // measure, where it reads them: weights and momentum are
  rules::MatrixProducts products;  // measure; of rules that are not matrix rules, gg alone
  StepSums sums;                   // results of measure and update

  // Of its first element, in the whole tensor: what random numbers go by.
  std::int64_t place() const { return first_element + offset; }
};

// A block of a row-major matrix: rows x cols with `stride` elements between rows. All
// matrix-sized arrays of a job share this geometry; blocks of int8 state begin where its rows do.
struct Geometry {
  std::int64_t rows = 0, cols = 0, stride = 0;
  std::int64_t numel() const { return rows * cols; }
  bool contiguous() const { return stride == cols || rows <= 1; }
};

// Averages over steps of the mean squares of the iterate's rows; null: rows are not normalised.
struct RowAverages {
  float* avg_sq = nullptr;  // one per row of the fan-out
  bool columns = false;     // these rows are the columns of the matrix as stored
};

struct RodeJob : JobBase {
  const rules::RodeConstants* constants = nullptr;
  Geometry geometry;
  Moments momentum;
  RowAverages rows;
  double scale = 1;         // of the angle, by fan-out and fan-in
  std::int64_t fan_in = 0;  // for on_zero = start
  rules::RadiusTarget target;
  rules::RodeScalarState state;  // radius_scope = rows: those of a radius are arrays over rows
  rules::RodeScalars scalars{};  // update
  rules::MatrixWrite write{};    // update
};

struct MuonJob : JobBase {  // Muon, MARS-M and Muown
  const rules::MuonConstants* constants = nullptr;
  Geometry geometry;
  Moments momentum;
  Moments previous;  // MARS-M only
  RowAverages rows;
  float* radius = nullptr;  // normproj and hyperball only
  rules::MuownState own;    // Muown only
  double scale = 1;         // of the fan-out and fan-in
  bool held = false;        // update: zero radius
};

struct SoapMode {
  std::int64_t extent = 0;
  float* gram = nullptr;   // null, as the basis: has_basis() is false
  float* basis = nullptr;  // columns are the basis vectors
};

struct SoapJob : JobBase {
  const rules::SoapConstants* constants = nullptr;
  std::vector<SoapMode> modes;  // outermost first
  float* exp_avg = nullptr;
  float* exp_avg_sq = nullptr;
  std::int64_t* step = nullptr;
  bool failed = false;  // update: its factors could not be decomposed, nothing was changed
};

struct AdafactorJob : JobBase {
  const rules::AdafactorConstants* constants = nullptr;
  std::int64_t planes = 1, rows = 0, cols = 0;  // last two dimensions, and how many such
  float* row = nullptr;                         // planes x rows
  float* col = nullptr;                         // planes x cols
  Moments exp_avg_sq;                           // rank < 2 only
  std::int64_t* step = nullptr;
};

// Rules that treat every element alike.
struct ElementJob : JobBase {
  rules::ElementRules::Variant constants;
  Geometry geometry;                   // without gaps; its rows are those of int8 blocks
  Moments state[rules::kMostMoments];  // in the order of the rule's kKeys
  std::int64_t* step = nullptr;        // null where the rule does not count
};

// Whether every row of the fan-out has a radius of its own.
inline bool has_row_radius(const RodeJob& job) {
  return job.constants->radius_scope == RadiusScope::rows;
}
inline bool has_row_radius(const MuonJob& job) { return job.constants->muown.on; }
inline bool has_row_radius(const JobBase&) { return false; }

// Whether the ||W||^2 that a step reports is the one that measuring has found; where not, the
// update sums it.
inline bool reports_measured_norm(const RodeJob&) { return true; }
inline bool reports_measured_norm(const JobBase&) { return false; }

// Rows, columns and stride of any job's weights.
inline Geometry geometry_of(const RodeJob& job) { return job.geometry; }
inline Geometry geometry_of(const MuonJob& job) { return job.geometry; }
inline Geometry geometry_of(const SoapJob& job) {
  std::int64_t count = 1;
  for (const SoapMode& mode : job.modes) count *= mode.extent;
  return {1, count, count};
}
inline Geometry geometry_of(const AdafactorJob& job) {
  return {job.planes * job.rows, job.cols, job.cols};
}
inline Geometry geometry_of(const ElementJob& job) {
  const std::int64_t count = job.geometry.numel();
  return {1, count, count};
}

// Whether a dimension is rotated.
inline bool has_basis(const SoapJob& job, const SoapMode& mode) {
  return rules::has_basis(mode.extent, job.constants->max_precond_dim);
}

// FLOPs of all of its rotations and bases.
inline double rotation_flops(const SoapJob& job) {
  const auto count = static_cast<double>(geometry_of(job).numel());
  double flops = 0;
  for (const SoapMode& mode : job.modes) {
    if (!has_basis(job, mode)) continue;
    flops += rules::soap_flops(count, static_cast<double>(mode.extent),
                               job.constants->precondition_frequency);
  }
  return flops;
}

// Any job, as its own type.
using AnyJob = std::variant<RodeJob*, MuonJob*, SoapJob*, AdafactorJob*, ElementJob*>;

// One step's whole work. Deques: addresses stay while jobs are added.
struct JobList {
  std::deque<RodeJob> rode;
  std::deque<MuonJob> muon;
  std::deque<SoapJob> soap;
  std::deque<AdafactorJob> adafactor;
  std::deque<ElementJob> element;

  // Calls f with every job, as its own type: kind by kind, in the order above.
  template <class F>
  void for_each(F&& f) {
    visit(*this, f);
  }
  template <class F>
  void for_each(F&& f) const {
    visit(*this, f);
  }

 private:
  template <class List, class F>
  static void visit(List& list, F& f) {
    for (auto& job : list.rode) f(job);
    for (auto& job : list.muon) f(job);
    for (auto& job : list.soap) f(job);
    for (auto& job : list.adafactor) f(job);
    for (auto& job : list.element) f(job);
  }
};

}  // namespace rode
