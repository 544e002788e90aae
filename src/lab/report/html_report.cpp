// SPDX-License-Identifier: Apache-2.0
// The page: table, curves, and the options that made them.
#include "lab/report/html_report.h"

#include <array>

#include <fmt/format.h>

#include "core/file_io.h"
#include "rode/version.h"

namespace rode::lab {
namespace {

constexpr std::string_view kStyle = R"(
body { font: 15px/1.5 sans-serif; color: #222; max-width: 84em; margin: 2em auto; padding: 0 1em }
table { border-collapse: collapse; margin: 1em 0 }
th, td { padding: .3em .9em; text-align: right; border-bottom: 1px solid #ddd }
th:first-child, td:first-child { text-align: left }
.charts { display: flex; flex-wrap: wrap; gap: 1em }
.charts svg { max-width: 100%; height: auto; border: 1px solid #eee }
code { font-size: 90% }
)";

// In the order that a reader wants them.
constexpr std::array<std::string_view, 7> kOrder = {
    "validation_loss", "validation_loss_late", "validation_accuracy", "training_loss",
    "weight_norm",     "gradient_norm",        "update_ratio"};

std::string table_html(const std::vector<std::vector<std::string>>& rows) {
  std::string out = "<table>\n";
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const std::string_view tag = r == 0 ? "th" : "td";
    out += "<tr>";
    for (const std::string& text : rows[r]) {
      out += fmt::format("<{0}>{1}</{0}>", tag, escape_markup(text));
    }
    out += "</tr>\n";
  }
  return out + "</table>\n";
}

std::string options_html(const Comparison& comparison) {
  std::string out = "<h2>Options</h2>\n";
  for (const OptimizerSummary& optimizer : comparison.optimizers) {
    const Json& run = optimizer.runs.front().run;
    std::string values;
    for (const auto& [key, value] : run.at("options").items()) {
      values += fmt::format("{}={} ", key, value.get<std::string>());
    }
    out += fmt::format("<p><b>{}</b> ({}): <code>{}</code></p>\n", escape_markup(optimizer.name),
                       escape_markup(run.value("method", "")), escape_markup(values));
  }
  const Json& task = comparison.optimizers.front().runs.front().run.at("task");
  out += fmt::format("<h2>Task</h2>\n<pre><code>{}</code></pre>\n", escape_markup(task.dump(2)));
  return out;
}

void write_text(const std::filesystem::path& path, const std::string& text) {
  AtomicFile file(path, "report");
  file.write(std::as_bytes(std::span(text.data(), text.size())));
  file.commit();
}

}  // namespace

std::string html_report(const Comparison& comparison) {
  std::string out = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\">"
      "<title>{0}: comparison</title><style>{1}</style></head>\n<body>\n<h1>{0}</h1>\n<p>{2}</p>\n",
      escape_markup(comparison.task), kStyle, escape_markup(comparison.title));
  out += table_html(summary_table(comparison));
  out +=
      "<p>Mean and sample deviation over the seeds that were finished; bands in the curves are "
      "one deviation. A run that diverged is in no mean; its curves are dashed, and cut off where "
      "they leave the others' range. Memory is the peak of the whole process; on CUDA that of "
      "Torch's tensors, with the optimizer's workspace. State is what the optimizer keeps.";
  if (const auto lowest = comparison.lowest_possible_loss()) {
    out += fmt::format(" No model can expect a loss below {:.4f}.", *lowest);
  }
  out += "</p>\n<div class=\"charts\">\n";
  const auto charts = charts_of(comparison);
  for (const std::string_view name : kOrder) {
    const auto found = charts.find(std::string(name));
    if (found != charts.end()) out += to_svg(found->second);
  }
  out += "</div>\n" + options_html(comparison);
  return out + fmt::format("<p>rode {}</p>\n</body>\n</html>\n", version());
}

void write_report(const Comparison& comparison, const std::filesystem::path& folder) {
  for (const auto& [name, chart] : charts_of(comparison)) {
    write_text(folder / (name + ".svg"), to_svg(chart));
  }
  write_json(folder / "compare.json", to_json(comparison));
  write_text(folder / "report.html", html_report(comparison));
}

}  // namespace rode::lab
