// SPDX-License-Identifier: Apache-2.0
// Tables as text, Markdown, CSV, LaTeX and HTML.
#include "lab/report/table.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "lab/report/chart.h"

namespace rode::lab {
namespace {

constexpr const char* kNothing = "-";

std::string number_text(double value, int digits, bool sign) {
  std::string text = fmt::format("{:.{}f}", value, digits);
  // "-0.0000" is no sign that a reader should see.
  if (text.find_first_of("123456789") == std::string::npos && text.starts_with('-')) {
    text.erase(0, 1);
  }
  return sign && !text.starts_with('-') ? "+" + text : text;
}

std::string mean_text(const Cell& cell) {
  return cell.value ? number_text(*cell.value, cell.digits, cell.sign) : std::string();
}

bool is_shown(const Cell& cell) { return cell.value || !cell.text.empty(); }

bool has_deviations(const Table& table, std::size_t column) {
  return std::any_of(table.rows.begin(), table.rows.end(), [&](const std::vector<Cell>& row) {
    return row[column].deviation.has_value();
  });
}

bool is_numeric(const Table& table, std::size_t column) {
  return std::any_of(table.rows.begin(), table.rows.end(),
                     [&](const std::vector<Cell>& row) { return row[column].value.has_value(); });
}

std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\n\r") == std::string::npos) return text;
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"') out += '"';
    out += c;
  }
  return out + '"';
}

std::string csv_number(const std::optional<double>& value) {
  return value && std::isfinite(*value) ? fmt::format("{}", *value) : std::string();
}

std::string latex_text(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '\\': out += "\\textbackslash{}"; break;
      case '~': out += "\\textasciitilde{}"; break;
      case '^': out += "\\textasciicircum{}"; break;
      case '&':
      case '%':
      case '$':
      case '#':
      case '_':
      case '{':
      case '}': out += '\\'; [[fallthrough]];
      default: out += c;
    }
  }
  return out;
}

std::string latex_cell(const Cell& cell) {
  if (!cell.value) return cell.text.empty() ? "--" : latex_text(cell.text);
  std::string text = number_text(*cell.value, cell.digits, cell.sign);
  if (cell.deviation) {
    text += fmt::format(" \\pm {}", number_text(*cell.deviation, cell.digits, false));
  }
  return cell.best ? fmt::format("$\\mathbf{{{}}}$", text) : fmt::format("${}$", text);
}

}  // namespace

std::string Cell::shown() const {
  if (!value) return text.empty() ? kNothing : text;
  std::string out = number_text(*value, digits, sign);
  if (deviation) out += " ± " + number_text(*deviation, digits, false);
  return out;
}

Cell text_cell(std::string text) { return {.text = std::move(text)}; }

Cell spread_cell(const std::optional<Spread>& spread, int digits, double scale) {
  Cell cell{.digits = digits};
  if (!spread) return cell;
  cell.value = spread->mean * scale;
  if (spread->deviation) cell.deviation = *spread->deviation * scale;
  return cell;
}

Cell published_cell(const std::optional<PublishedValue>& value, int digits) {
  Cell cell{.digits = digits};
  if (!value) return cell;
  cell.value = value->mean;
  cell.deviation = value->deviation;
  return cell;
}

Cell difference_cell(const Difference& difference, int digits, double scale) {
  Cell cell{.value = difference.value * scale, .digits = digits, .sign = true};
  if (difference.error) cell.deviation = *difference.error * scale;
  return cell;
}

void Table::mark_best() {
  for (std::size_t c = 0; c < columns.size(); ++c) {
    if (columns[c].better == Better::neither) continue;
    const double sign = columns[c].better == Better::low ? 1 : -1;
    double best = std::numeric_limits<double>::infinity();
    std::string best_shown;
    std::size_t values = 0;
    for (const auto& row : rows) {
      const Cell& cell = row[c];
      if (!cell.value) continue;
      ++values;
      if (sign * *cell.value >= best) continue;
      best = sign * *cell.value;
      best_shown = mean_text(cell);
    }
    if (values < 2) continue;  // nothing that it would be better than
    // Two means that are printed alike are both the best.
    for (auto& row : rows) row[c].best = row[c].value && mean_text(row[c]) == best_shown;
  }
}

void Table::drop_empty_columns() {
  for (std::size_t c = columns.size(); c-- > 0;) {
    if (std::any_of(rows.begin(), rows.end(), [&](const auto& row) { return is_shown(row[c]); })) {
      continue;
    }
    const auto at = static_cast<std::ptrdiff_t>(c);
    columns.erase(columns.begin() + at);
    for (auto& row : rows) row.erase(row.begin() + at);
  }
}

std::vector<std::vector<std::string>> to_rows(const Table& table) {
  std::vector<std::vector<std::string>> rows(1);
  for (const Column& column : table.columns) rows.front().push_back(column.name);
  for (const auto& row : table.rows) {
    rows.emplace_back();
    for (const Cell& cell : row) rows.back().push_back(cell.shown() + (cell.best ? "*" : ""));
  }
  return rows;
}

std::string escape_markdown(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (std::string_view("\\`*_[]<>|").find(c) != std::string_view::npos) out += '\\';
    out += c == '\n' || c == '\r' ? ' ' : c;
  }
  return out;
}

std::string to_markdown(const Table& table) {
  std::string out = "|";
  for (const Column& column : table.columns)
    out += fmt::format(" {} |", escape_markdown(column.name));
  out += "\n|";
  for (std::size_t c = 0; c < table.columns.size(); ++c) {
    out += is_numeric(table, c) ? "---:|" : "---|";
  }
  out += "\n";
  for (const auto& row : table.rows) {
    out += "|";
    for (const Cell& cell : row) {
      const std::string text = cell.value ? cell.shown() : escape_markdown(cell.shown());
      out += cell.best ? fmt::format(" **{}** |", text) : fmt::format(" {} |", text);
    }
    out += "\n";
  }
  return out;
}

std::string to_csv(const Table& table) {
  std::string out;
  const auto end_line = [&] { out.back() = '\n'; };
  for (std::size_t c = 0; c < table.columns.size(); ++c) {
    const Column& column = table.columns[c];
    out += csv_field(column.name) + ",";
    if (has_deviations(table, c)) out += csv_field(column.name + " " + column.error_name) + ",";
  }
  end_line();
  for (const auto& row : table.rows) {
    for (std::size_t c = 0; c < row.size(); ++c) {
      out += (row[c].value ? csv_number(row[c].value) : csv_field(row[c].text)) + ",";
      if (has_deviations(table, c)) out += csv_number(row[c].deviation) + ",";
    }
    end_line();
  }
  return out;
}

std::string to_latex(const Table& table) {
  std::string out = fmt::format(
      "% \\usepackage{{booktabs}}\n\\begin{{table}}[htbp]\n  \\centering\n  \\caption{{{}}}\n"
      "  \\label{{tab:{}}}\n  \\begin{{tabular}}{{",
      latex_text(table.title), table.name);
  for (std::size_t c = 0; c < table.columns.size(); ++c) out += is_numeric(table, c) ? "r" : "l";
  out += "}\n    \\toprule\n    ";
  for (std::size_t c = 0; c < table.columns.size(); ++c) {
    const Better better = table.columns[c].better;
    out += fmt::format("{}{}{}", c == 0 ? "" : " & ", latex_text(table.columns[c].name),
                       better == Better::low    ? " $\\downarrow$"
                       : better == Better::high ? " $\\uparrow$"
                                                : "");
  }
  out += " \\\\\n    \\midrule\n";
  for (const auto& row : table.rows) {
    out += "    ";
    for (std::size_t c = 0; c < row.size(); ++c) out += (c == 0 ? "" : " & ") + latex_cell(row[c]);
    out += " \\\\\n";
  }
  return out + "    \\bottomrule\n  \\end{tabular}\n\\end{table}\n";
}

std::string to_html(const Table& table, const std::vector<std::string>& samples) {
  std::string out = "<div class=\"wide\"><table>\n<thead><tr>";
  for (std::size_t c = 0; c < table.columns.size(); ++c) {
    out += fmt::format("<th scope=\"col\"{}>{}</th>", is_numeric(table, c) ? "" : " class=\"text\"",
                       escape_markup(table.columns[c].name));
  }
  out += "</tr></thead>\n<tbody>\n";
  for (std::size_t r = 0; r < table.rows.size(); ++r) {
    out += "<tr>";
    for (std::size_t c = 0; c < table.rows[r].size(); ++c) {
      const Cell& cell = table.rows[r][c];
      const std::string text = escape_markup(cell.shown());
      out += fmt::format("<td{}>{}{}</td>", is_numeric(table, c) ? "" : " class=\"text\"",
                         c == 0 && r < samples.size() ? samples[r] : "",
                         cell.best ? "<strong>" + text + "</strong>" : text);
    }
    out += "</tr>\n";
  }
  return out + "</tbody>\n</table></div>\n";
}

}  // namespace rode::lab
