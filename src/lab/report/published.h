// SPDX-License-Identifier: Apache-2.0
// The paper's own figures (published.json), and how a comparison differs from what they come from.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lab/report/comparison.h"

namespace rode::lab {

struct PublishedValue {
  double mean = 0;
  std::optional<double> deviation = {};
};

// One column of a table of the paper, for one task.
struct PublishedColumn {
  int table = 0;
  std::string task;
  std::string metric;
  std::map<std::string, PublishedValue> values;  // by optimizer
};

// Variants compared with a base (tables 3 and 6).
struct PublishedStudy {
  std::string name;
  int table = 0;
  std::string title;
  std::string base;
  std::vector<std::string> columns;  // what is shown of each variant
  std::vector<std::string> marks;    // without one of these it is no study
  std::vector<std::pair<std::string, std::vector<std::string>>> rows;
};

struct PublishedTask {
  std::int64_t seeds = 0;
  std::int64_t steps = 0;
  std::vector<std::string> notes;  // where the built-in task has to guess
};

struct Published {
  std::vector<PublishedColumn> columns;
  std::vector<PublishedStudy> studies;
  std::map<std::string, PublishedTask> tasks;

  // Of an optimizer, or of the one that "-published" is a twin of.
  std::optional<PublishedValue> find(std::initializer_list<int> tables, const std::string& task,
                                     const std::string& metric, const std::string& optimizer) const;
  // The paper's task with which a comparison is shown: that of its name, or with the same
  // model. Empty where there is none.
  std::string match(const Comparison& comparison) const;
  // The task of a table.
  std::string task_of(int table) const;
};
const Published& published();

// "rode" of "rode-published".
std::string without_twin(const std::string& optimizer);

// Every difference between the protocol that was run and the paper's, as the built-in task of that
// name states it: "steps: 600 here, 4000 in the paper". Then what the paper leaves open.
std::vector<std::string> protocol_differences(const Comparison& comparison,
                                              const std::string& task);

}  // namespace rode::lab
