// SPDX-License-Identifier: Apache-2.0
// The page: table, curves, and the options that made them.
#include "lab/report/html_report.h"

#include <array>

#include <fmt/format.h>

#include "core/file_io.h"
#include "lab/base/embedded.h"
#include "lab/report/html_chart.h"
#include "lab/report/png.h"
#include "rode/version.h"

namespace rode::lab {
namespace {

std::string_view page_part(std::string_view name) {
  for (const EmbeddedFile& file : embedded_files()) {
    if (file.name == name) return file.text;
  }
  return {};
}

// In the order that a reader wants them.
constexpr std::array<std::string_view, 7> kOrder = {
    "validation_loss", "validation_loss_late", "validation_accuracy", "training_loss",
    "weight_norm",     "gradient_norm",        "update_ratio"};

// The first column has the samples of the curves: the table is a legend too.
std::string table_html(const std::vector<std::vector<std::string>>& rows,
                       const std::vector<std::string>& samples) {
  std::string out = "<div class=\"wide\"><table>\n<thead><tr>";
  for (const std::string& text : rows.front()) {
    out += fmt::format("<th scope=\"col\">{}</th>", escape_markup(text));
  }
  out += "</tr></thead>\n<tbody>\n";
  for (std::size_t r = 1; r < rows.size(); ++r) {
    out += "<tr>";
    for (std::size_t c = 0; c < rows[r].size(); ++c) {
      out += fmt::format("<td>{}{}</td>", c == 0 ? samples[r - 1] : "", escape_markup(rows[r][c]));
    }
    out += "</tr>\n";
  }
  return out + "</tbody>\n</table></div>\n";
}

std::vector<std::string> samples_of(const Comparison& comparison) {
  Chart names;
  for (const OptimizerSummary& optimizer : comparison.optimizers) {
    names.series.push_back({.name = optimizer.name});
  }
  std::vector<std::string> samples;
  for (const LegendEntry& entry : legend_of(names)) samples.push_back(html_sample(entry));
  return samples;
}

std::string options_html(const Comparison& comparison) {
  std::string out = "<h2>Options</h2>\n<dl class=\"options\">\n";
  for (const OptimizerSummary& optimizer : comparison.optimizers) {
    const Json& run = optimizer.runs.front().run;
    std::string values;
    for (const auto& [key, value] : run.at("options").items()) {
      values += fmt::format("{}={} ", key, value.get<std::string>());
    }
    out += fmt::format("<dt>{} <span>({})</span></dt><dd><code>{}</code></dd>\n",
                       escape_markup(optimizer.name), escape_markup(run.value("method", "")),
                       escape_markup(values));
  }
  const Json& task = comparison.optimizers.front().runs.front().run.at("task");
  out += fmt::format("</dl>\n<h2>Task</h2>\n<pre><code>{}</code></pre>\n",
                     escape_markup(task.dump(2)));
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
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">"
      "<title>{0}: comparison</title>\n<style>\n{1}</style></head>\n<body>\n<h1>{0}</h1>\n"
      "<p class=\"title\">{2}<br>{3}</p>\n",
      escape_markup(comparison.task), page_part("src/lab/report/page.css"),
      escape_markup(comparison.title), escape_markup(comparison.protocol));
  out += table_html(summary_table(comparison), samples_of(comparison));
  out +=
      "<p class=\"about\">Mean and sample deviation over the seeds that were finished; bands in "
      "the "
      "curves are one deviation. A run that diverged is not part of any mean; its curve is thin "
      "and ends in "
      "a "
      "cross, at the edge where it leaves the others' range. Memory is the peak of the whole "
      "process; on CUDA that of Torch's tensors, with the optimizer's workspace. State is what the "
      "optimizer keeps.";
  if (const auto lowest = comparison.lowest_possible_loss()) {
    out += fmt::format(" No model can have an expected loss below {:.4f}.", *lowest);
  }
  const auto charts = charts_of(comparison);
  out += charts.empty() ? "</p>\n<p>No run has enough evaluations for a curve.</p>\n<div>\n"
                        : "</p>\n<div class=\"charts\">\n";
  for (const std::string_view name : kOrder) {
    const auto found = charts.find(std::string(name));
    if (found != charts.end()) out += html_figure(found->second);
  }
  out += "</div>\n" + options_html(comparison);
  return out + fmt::format("<footer>rode {}</footer>\n<script>\n{}</script>\n</body>\n</html>\n",
                           version(), page_part("src/lab/report/page.js"));
}

void write_report(const Comparison& comparison, const std::filesystem::path& folder,
                  const Note& note) {
  const auto charts = charts_of(comparison);
  std::string converter = svg_converter();
  for (const std::string_view name : kOrder) {
    const std::filesystem::path svg = folder / (std::string(name) + ".svg");
    const std::filesystem::path png = folder / (std::string(name) + ".png");
    const auto found = charts.find(std::string(name));
    std::filesystem::remove(png);  // of an earlier report
    if (found == charts.end()) {
      std::filesystem::remove(svg);
      continue;
    }
    write_text(svg, to_svg(found->second));
    if (converter.empty() || convert_svg(converter, svg, png)) continue;
    if (note) note(fmt::format("'{}' made no PNG of '{}'", converter, printable(svg.string())));
    converter.clear();
  }
  write_json(folder / "compare.json", to_json(comparison));
  write_text(folder / "report.html", html_report(comparison));
}

}  // namespace rode::lab
