// SPDX-License-Identifier: Apache-2.0
// The order of a SOAP step on one tensor, over operations that a backend provides.
//
// New Gram matrices and bases are made in the workspace first: what can fail, fails before
// any weight or state has moved.
#pragma once

#include <cstdint>

#include "backend/jobs.h"
#include "rules/soap_rule.h"

namespace rode::host {

// A tensor as outer x extent x inner, with a mode in the middle.
struct ModeView {
  std::int64_t outer = 1, extent = 1, inner = 1;
  std::int64_t rest() const { return outer * inner; }
  std::int64_t square() const { return extent * extent; }
  std::int64_t numel() const { return outer * extent * inner; }
};

// A mode with a basis; `squares` and `lines` count the elements of the n x n and of the n-element
// arrays of the modes before it.
struct Mode : ModeView {
  float *gram, *basis;
  std::int64_t squares, lines;
};

inline std::int64_t element_count(const SoapJob& job) { return geometry_of(job).numel(); }

// Calls f(mode) for every mode with a basis.
template <class F>
void for_modes(const SoapJob& job, F&& f) {
  std::int64_t outer = 1, inner = element_count(job), squares = 0, lines = 0;
  if (inner == 0) return;
  for (const SoapMode& mode : job.modes) {
    const std::int64_t n = mode.extent;
    inner /= n;
    if (has_basis(job, mode)) {
      f(Mode{{outer, n, inner}, mode.gram, mode.basis, squares, lines});
      squares += n * n;
      lines += n;
    }
    outer *= n;
  }
}

// Workspace of one job. Grams, bases and orders of all modes lie one behind the other; `buffer`
// and `other`, of the tensor's size, serve one stage after another.
struct SoapSpace {
  float *grams, *bases;
  std::int32_t* orders;
  float *buffer, *other;
};

// Operations has, on memory of its backend:
//   const float* gradient()              in fp32; in `buffer` where it is not stored so
//   void gram(mode, g, fresh)            fresh = beta2 L + (1 - beta2) GG
//   bool first_basis(mode, gram, basis)  eigenvectors; false where LAPACK fails, as the next
//   bool next_basis(mode, gram, basis, order)
//   void rotate(mode, into, x, y)        y = x rotated into the mode's basis, or back
//   void permute(mode, order, x, y)      y = x with index order[j] of the mode at j
//   void copy(from, to, count)
//   void moments(g, direction)           advances both moments with the rotated gradient
//   void write(SoapWrite, direction)     null: the weights stay, and are measured
template <class Operations>
class SoapStep {
 public:
  SoapStep(const SoapJob& job, const SoapSpace& space, Operations& operations)
      : job_(job), space_(space), run_(operations) {}

  // k counts the gradients after the first. Returns false, with nothing changed, where a factor
  // could not be decomposed: other parameters of the step have moved by now, so that this one is
  // left out instead of throwing.
  bool operator()(std::int64_t k, double multiplier) {
    const rules::SoapConstants& c = *job_.constants;
    const bool changes = rules::soap_changes_basis(c, k);
    const float* g = run_.gradient();
    for_modes(job_, [&](const Mode& mode) { run_.gram(mode, g, space_.grams + mode.squares); });
    if (k == 0 ? !first_bases() : changes && !next_bases()) return false;
    if (k == 0) {
      keep_bases();
      run_.write({1, 0}, nullptr);
    } else {
      step_weights(rules::soap_write(c, multiplier, k));
      if (changes) change_bases();
    }
    for_modes(job_, [&](const Mode& mode) {
      run_.copy(space_.grams + mode.squares, mode.gram, mode.square());
    });
    return true;
  }

 private:
  bool first_bases() {
    bool done = true;
    for_modes(job_, [&](const Mode& mode) {
      done =
          done && run_.first_basis(mode, space_.grams + mode.squares, space_.bases + mode.squares);
    });
    return done;
  }

  bool next_bases() {
    bool done = true;
    for_modes(job_, [&](const Mode& mode) {
      done = done && run_.next_basis(mode, space_.grams + mode.squares, space_.bases + mode.squares,
                                     space_.orders + mode.lines);
    });
    return done;
  }

  float* free_of(const float* x) const { return x == space_.buffer ? space_.other : space_.buffer; }

  // Through every mode, into the bases or back; the result lies in x, buffer or other.
  const float* rotate_all(bool into, const float* x) {
    for_modes(job_, [&](const Mode& mode) {
      float* y = free_of(x);
      run_.rotate(mode, into, x, y);
      x = y;
    });
    return x;
  }

  void keep_bases() {
    for_modes(job_, [&](const Mode& mode) {
      run_.copy(space_.bases + mode.squares, mode.basis, mode.square());
    });
  }

  void step_weights(const rules::SoapWrite& write) {
    const float* g = rotate_all(true, run_.gradient());
    float* direction = free_of(g);
    run_.moments(g, direction);
    run_.write(write, rotate_all(false, direction));
  }

  // exp_avg goes from the old bases to the new ones, exp_avg_sq follows their order.
  void change_bases() {
    const std::int64_t count = element_count(job_);
    const float* m = rotate_all(false, job_.exp_avg);
    keep_bases();
    run_.copy(rotate_all(true, m), job_.exp_avg, count);

    const float* v = job_.exp_avg_sq;
    for_modes(job_, [&](const Mode& mode) {
      float* y = free_of(v);
      run_.permute(mode, space_.orders + mode.lines, v, y);
      v = y;
    });
    run_.copy(v, job_.exp_avg_sq, count);
  }

  const SoapJob& job_;
  const SoapSpace& space_;
  Operations& run_;
};

}  // namespace rode::host
