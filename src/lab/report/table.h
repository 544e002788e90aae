// SPDX-License-Identifier: Apache-2.0
// A table that can be written in every format of a report.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lab/report/published.h"
#include "lab/report/statistics.h"

namespace rode::lab {

struct Cell {
  std::string text = {};                 // where there is no number
  std::optional<double> value = {};      // in the unit of its column
  std::optional<double> deviation = {};  // or the standard error, as the column's name says
  int digits = 4;
  bool sign = false;  // "+" too
  bool best = false;

  std::string shown() const;  // "1.5000 ± 0.7071", "-" where there is nothing
};
Cell text_cell(std::string text);
Cell spread_cell(const std::optional<Spread>& spread, int digits, double scale = 1);
Cell published_cell(const std::optional<PublishedValue>& value, int digits);
Cell difference_cell(const Difference& difference, int digits, double scale = 1);

enum class Better { neither, low, high };

struct Column {
  std::string name;
  Better better = Better::neither;  // its best mean is printed bold
  std::string error_name = "sd";    // of the second column that CSV needs
};

struct Table {
  std::string name;  // of its files
  std::string title;
  std::vector<Column> columns;
  std::vector<std::vector<Cell>> rows = {};
  std::vector<std::string> notes = {};

  void mark_best();
  // Columns without any entry say nothing.
  void drop_empty_columns();
};

// Rows of text, the first with the names of the columns; the best with a star.
std::vector<std::vector<std::string>> to_rows(const Table& table);
std::string to_markdown(const Table& table);
// Full precision; a column with deviations becomes two.
std::string to_csv(const Table& table);
// A whole table environment; needs booktabs.
std::string to_latex(const Table& table);
// `samples`: of the curves, before the names of the rows; the table is a legend then.
std::string to_html(const Table& table, const std::vector<std::string>& samples = {});

std::string escape_markdown(const std::string& text);

}  // namespace rode::lab
