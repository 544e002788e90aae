// SPDX-License-Identifier: Apache-2.0
// Every check of the paper's theory, on problems made from a seed, and on the log of a training
// run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "lab/run/folder.h"
#include "lab/theory/check.h"

namespace rode::lab::theory {

// A constant of an assumption, as measured.
struct Measured {
  std::string symbol;  // as in the paper: "c_NS"
  std::string label;   // of the assumption that has it
  std::string of;      // "guarded", "every" or the run's optimizer
  double value = 0;
};

struct Report {
  std::vector<Check> checks = {};
  std::vector<Measured> constants = {};
  std::string source = {};  // what was measured, one line

  bool all_hold() const;
  void add(const std::vector<Check>& more) {
    checks.insert(checks.end(), more.begin(), more.end());
  }
};

Report check_theory(std::uint64_t seed);

// The diagnostics in log.jsonl, and the momenta in the last checkpoint. Throws where the run is not
// of RODE or has logged no diagnostics yet.
Report check_run(const std::filesystem::path& folder, const Note& note = {});

}  // namespace rode::lab::theory
