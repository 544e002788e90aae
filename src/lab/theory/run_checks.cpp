// SPDX-License-Identifier: Apache-2.0
// The assumptions on a training run: its logged diagnostics, and the momenta of its last
// checkpoint.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "core/file_io.h"
#include "lab/theory/matrix.h"
#include "lab/theory/theory.h"
#include "lab/theory/trace.h"
#include "rode/error.h"
#include "rode/method.h"
#include "rode/safetensors.h"

namespace rode::lab::theory {
namespace {

constexpr const char* kOperation = "theory";
constexpr double kLogged = 1e-5;  // a device computes an angle in fp32
constexpr std::size_t kMostMatrices =
    16;  // whose singular values are computed: seconds for large ones

double number(const Json& json, const char* key, const std::string& where) {
  if (json.is_object() && json.contains(key) && json[key].is_number()) return json[key];
  throw file_error(
      kOperation, where,
      fmt::format("has a line of diagnostics without the number '{}'; expected the log "
                  "of 'rode train'; restore the file from a copy",
                  key));
}

std::string text(const Json& json, const char* key, const std::string& where) {
  if (json.is_object() && json.contains(key) && json[key].is_string()) return json[key];
  throw file_error(
      kOperation, where,
      fmt::format("has no text '{}'; expected a file of 'rode train'; restore the file "
                  "from a copy",
                  key));
}

RodeOptions options_of(const Json& run, const std::string& where) {
  const std::string name = text(run, "method", where);
  Settings settings;
  if (run.contains("options") && run["options"].is_object()) {
    for (const auto& [key, value] : run["options"].items()) {
      settings.emplace_back(key, text(run["options"], key.c_str(), where));
    }
  }
  const Method method = Method::by_name(name, settings);
  if (const auto* options = method.get_if<RodeOptions>()) return *options;
  throw Error(ErrorKind::invalid_argument, kOperation,
              fmt::format("the run in '{}' used '{}'; expected a run with RODE, which logs radii "
                          "and angles; give the folder of such a run",
                          where, name));
}

// What the log says of all matrices together.
struct Logged {
  double rho_min = std::numeric_limits<double>::infinity(), rho_max = 0;
  double q_min = std::numeric_limits<double>::infinity(), q_max = 0;
  double theta_max = 0, gamma_min = 1, stored_max = 0, momentum_max = 0;
  double angle_error = 0, radius_error = 0;
  double floor_used = 0, without_direction = 0;
  std::size_t lines = 0, entries = 0;

  void add(const Json& m, double lr, double lr_rho, const RodeOptions& options,
           const std::string& where);
};

void Logged::add(const Json& m, double lr, double lr_rho, const RodeOptions& options,
                 const std::string& where) {
  const auto get = [&](const char* key) { return number(m, key, where); };
  const double rho = get("rho"), next = get("rho_next"), q = get("q"), theta = get("theta");
  if (rho == 0) return;  // skipped by its step, or held at zero
  ++entries;
  rho_min = std::min({rho_min, rho, next});
  rho_max = std::max({rho_max, rho, next});
  gamma_min = std::min(gamma_min, get("gamma"));
  stored_max = std::max(stored_max, std::abs(get("s")));
  momentum_max = std::max(momentum_max, (1 - options.momentum) * get("m_norm"));
  if (options.radius == Radius::learned) {
    radius_error = std::max(radius_error, std::abs(next - (rho - lr_rho * get("s"))) / rho);
  }
  if (next <= options.floor * rho) ++floor_used;
  if (q == 0) {
    ++without_direction;
    return;
  }
  q_min = std::min(q_min, q);
  q_max = std::max(q_max, q);
  theta_max = std::max(theta_max, theta);
  // The log has no shapes, by which scale = angle divides.
  const double expected = options.scale == RodeScale::kernel ? lr * get("gamma") * q : 0;
  if (expected > 0) angle_error = std::max(angle_error, std::abs(theta - expected) / expected);
}

Logged read_log(const RunFolder& folder, const RodeOptions& options, const Note& note) {
  const std::string where = folder.log().string();
  Logged logged;
  for (const Json& line : read_json_lines(folder.log(), note)) {
    if (line.value("kind", "") != "step" || !line.contains("matrices")) continue;
    ++logged.lines;
    const double lr = number(line, "lr", where);
    const double lr_rho = line.contains("lr_rho") ? number(line, "lr_rho", where) : 0;
    for (const auto& [name, entry] : line["matrices"].items()) {
      logged.add(entry, lr, lr_rho, options, where);
    }
  }
  if (logged.entries > 0) return logged;
  throw file_error(kOperation, where,
                   "has no diagnostics of a matrix; expected a run of RODE that has made a step "
                   "before an evaluation; train it further");
}

Values values_of(const ConstTensorView& view) {
  const auto count = static_cast<std::size_t>(view.numel());
  Values out(count);
  for (std::size_t i = 0; i < count; ++i) {
    if (view.dtype == DType::f32) {
      out[i] = static_cast<const float*>(view.data)[i];
    } else {
      const std::uint32_t bits = static_cast<const std::uint16_t*>(view.data)[i];
      out[i] = std::bit_cast<float>(bits << 16U);
    }
  }
  return out;
}

bool readable(const SafetensorsFile& file, const std::string& name) {
  if (!file.contains(name)) return false;
  const DType dtype = file.tensor(name).dtype;
  return dtype == DType::f32 || dtype == DType::bf16;
}

// Of the matrices of a checkpoint: the smallest <M,Q> / ||M||_* of the momenta as saved.
struct Alignment {
  double least = 1;
  std::string matrix = {};
  std::size_t probed = 0, matrices = 0;
  std::int64_t step = 0;
};

std::vector<std::string> matrices_in(const SafetensorsFile& file) {
  std::vector<std::string> names;
  for (const std::string& entry : file.names()) {
    if (!entry.starts_with("param.")) continue;
    const std::string name = entry.substr(6);
    const std::string momentum = "state." + name + ".momentum";
    // What is left to AdamW has other state.
    if (!readable(file, entry) || !readable(file, momentum)) continue;
    const ConstTensorView weight = file.tensor(entry);
    if (weight.shape.rank() >= 2 && weight.numel() > 0 &&
        weight.numel() == file.tensor(momentum).numel()) {
      names.push_back(name);
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

void probe(Alignment& found, const SafetensorsFile& file, const std::string& name,
           const RodeOptions& options) {
  const ConstTensorView view = file.tensor("param." + name);
  const auto rows = static_cast<std::size_t>(view.shape[0]);
  const Extent extent{rows, static_cast<std::size_t>(view.numel()) / rows};
  const Values weight = values_of(view);
  const Values buffer = values_of(file.tensor("state." + name + ".momentum"));
  if (norm(weight) == 0 || norm(buffer) == 0) return;
  const Values momentum = tangent(buffer, unit(weight));
  const Values iterate = iterate_of(weight, buffer, extent, options);
  const double alignment = dot(momentum, iterate) / nuclear_norm(momentum, extent);
  ++found.probed;
  if (alignment >= found.least) return;
  found.least = alignment;
  found.matrix = name;
}

std::optional<Alignment> read_checkpoint(const RunFolder& folder, const RodeOptions& options,
                                         const Note& note) {
  const std::vector<std::int64_t> steps = folder.checkpoints();
  if (steps.empty() || !options.splits.empty()) {
    if (note) {
      note(steps.empty() ? "the run has no checkpoint; c_NS is not measured"
                         : "the run splits matrices into blocks; c_NS is not measured");
    }
    return {};
  }
  const SafetensorsFile file = SafetensorsFile::open(folder.checkpoint(steps.back()));
  const std::vector<std::string> names = matrices_in(file);
  Alignment found{.matrices = names.size(), .step = steps.back()};
  const std::size_t stride = names.size() / (kMostMatrices + 1) + 1;
  for (std::size_t i = 0; i < names.size(); i += stride) probe(found, file, names[i], options);
  if (found.probed == 0) return {};
  return found;
}

}  // namespace

Report check_run(const std::filesystem::path& path, const Note& note) {
  const RunFolder folder(path);
  const std::string where = (path / "run.json").string();
  const Json run = read_json(path / "run.json", note);
  const RodeOptions options = options_of(run, where);
  const Logged logged = read_log(folder, options, note);
  const std::string name = text(run, "optimizer", where);
  Report report{.source = fmt::format("{}: {}, {} entries in {} lines of the log", path.string(),
                                      name, logged.entries, logged.lines)};

  const auto add = [&](Check check) { report.checks.push_back(std::move(check)); };
  if (options.direction != Direction::fixed) {
    if (options.scale == RodeScale::kernel) {
      add(make_check("run_angle", "eq:snr_angle", "theta = lr gamma q, relative error",
                     logged.angle_error, Side::at_most, kLogged));
    }
    add(make_check("run_largest_angle", "app:assump:angle", "largest theta <= pi/4",
                   logged.theta_max, Side::at_most, std::numbers::pi / 4));
    Check iterate = make_check("run_iterate", "app:assump:polar", "smallest q > 0", logged.q_min,
                               Side::at_least, 0);
    iterate.holds = logged.q_min > 0 && std::isfinite(logged.q_max);
    add(iterate);
    add(make_check("run_direction", "app:assump:polar", "entries without a direction (q = 0)",
                   logged.without_direction, Side::at_most, 0));
  }
  if (options.radius == Radius::learned) {
    add(make_check("run_radius", "eq:radial_update", "rho' = rho - lr_rho s, error per rho",
                   logged.radius_error, Side::at_most, kLogged));
  }
  add(make_check("run_floor", "app:global_convergence (inactive floor)",
                 "entries whose radius the floor decided", logged.floor_used, Side::at_most, 0));

  const auto constant = [&](const char* symbol, const char* label, double value) {
    report.constants.push_back({symbol, label, name, value});
  };
  if (const auto found = read_checkpoint(folder, options, note)) {
    Check alignment = make_check(
        "run_alignment", "app:assump:polar",
        fmt::format("c_NS > 0: smallest <M,Q> / ||M||_* of {} of {} momenta after step {}, in '{}'",
                    found->probed, found->matrices, found->step, found->matrix),
        found->least, Side::at_least, 0);
    alignment.holds = found->least > 0;
    add(alignment);
    constant("c_NS", "app:assump:polar", found->least);
  }
  constant("q_min", "app:assump:polar", logged.q_min);
  constant("q_max", "app:assump:polar", logged.q_max);
  constant("theta_max", "app:assump:angle", logged.theta_max);
  constant("rho_min", "app:assump:bounded", logged.rho_min);
  constant("rho_max", "app:assump:bounded", logged.rho_max);
  constant("M_max", "app:assump:bounded", logged.momentum_max);
  constant("A_max", "app:assump:bounded", logged.stored_max);
  constant("gamma_min", "app:assump:angle", logged.gamma_min);
  return report;
}

}  // namespace rode::lab::theory
