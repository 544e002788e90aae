// SPDX-License-Identifier: Apache-2.0
// One statement of the paper with the figure that was measured and the bound it must meet.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace rode::lab::theory {

enum class Side { at_most, at_least };

struct Check {
  std::string name;   // of the check: "leakage"
  std::string label;  // of the equation in the paper's source: "app:eq:leakage_bound"
  std::string what;   // the statement and the problem, one line
  double measured = 0;
  Side side = Side::at_most;
  double bound = 0;
  bool holds = false;
  // Where the paper prints another bound: that bound, and whether the measured figure meets it.
  std::optional<double> printed = {};
  bool holds_as_printed = true;
  std::string note = {};  // how a constant was measured, or what differs from the paper
};

// Compares; NaN never holds.
bool meets(double measured, Side side, double bound);
Check make_check(std::string name, std::string label, std::string what, double measured, Side side,
                 double bound);
void print_as(Check& check, double printed, std::string note);

// The point of a series that comes nearest to its bound, or exceeds it most.
class Worst {
 public:
  // `measured` <= `bound` is asked of every point; slack is relative to the larger of the two.
  void add(double measured, double bound);
  bool holds() const { return any_ && slack_ >= 0; }  // an empty series shows nothing
  double measured() const { return measured_; }
  double bound() const { return bound_; }

 private:
  bool any_ = false;
  double slack_ = 0, measured_ = 0, bound_ = 0;
};
Check make_check(std::string name, std::string label, std::string what, const Worst& worst);

// The slope of log y against log x, by least squares.
double slope(const std::vector<double>& x, const std::vector<double>& y);

}  // namespace rode::lab::theory
