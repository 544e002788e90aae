// SPDX-License-Identifier: Apache-2.0
// RODE, after "Complete update" (Appendix A) of the paper; its numbering is kept.
#include <algorithm>
#include <cmath>
#include <string>

#include "reference/blocks.h"
#include "reference/newton_schulz.h"
#include "reference/rules.h"
#include "reference/settings.h"

namespace rode::reference {
namespace {

struct Options {
  double lr, lr_rho, beta, floor, eps, eps_ns, snr_min, row_beta, brake, pull;
  std::int64_t ns_steps;
  std::string radius, direction, conditioner, coefficients, reproject, scale;
  bool snr, nesterov, rows, row_radius, starts;
};

Options read(const Settings& settings, double multiplier) {
  Options o;
  o.lr = number(settings, "lr") * multiplier;
  o.lr_rho = number(settings, "lr_rho") * multiplier;
  o.beta = number(settings, "momentum");
  o.scale = choice(settings, "scale", {"kernel", "angle"});
  o.brake = number(settings, "radius_brake");
  o.pull = number(settings, "radius_pull");
  o.floor = number(settings, "floor");
  o.eps = number(settings, "eps");
  o.eps_ns = number(settings, "eps_ns");
  o.radius = choice(settings, "radius", {"learned", "adaptive", "fixed"});
  o.direction = choice(settings, "direction", {"geodesic", "retraction", "fixed"});
  o.conditioner = choice(settings, "conditioner", {"newton_schulz", "none"});
  o.coefficients = coefficient_set(settings);
  o.ns_steps = iterations(settings, o.coefficients);
  o.reproject = choice(settings, "reproject", {"guarded", "every", "final"});
  o.snr = flag(settings, "snr");
  o.snr_min = o.snr ? number(settings, "snr_min") : 0.0;
  o.nesterov = flag(settings, "nesterov");
  o.starts = choice(settings, "on_zero", {"rest", "start", "hold"}) == "start";
  o.row_radius = choice(settings, "radius_scope", {"matrix", "rows"}) == "rows";
  o.rows = normalizes_rows(settings);
  o.row_beta = o.rows ? number(settings, "row_beta") : 0.0;
  if (o.coefficients != "jordan" && o.reproject == "every")
    refuse("coefficients", o.coefficients, "jordan where reproject is every");
  return o;
}

// The state of one block besides its buffer. If an option is off, its entries stay at zero and are
// never written back.
struct Scalars {
  double snr_norm = 0, radius = 0, average = 0, average_sq = 0, steps = 0, start_norm = 0;
};

// P(X) = X - <X, U> U.
Matrix project(const Matrix& x, const Matrix& u) { return combine(1.0, x, -inner(x, u), u); }

// Items 5 and 6: the conditioned tangent iterate of a start that is not zero.
Matrix kernel(const Options& o, const Matrix& start, const Matrix& u) {
  Matrix x = scale(1.0 / norm(start), start);
  if (o.conditioner == "none") return x;
  x = scaled_start(scale(1.0 / margin(o.coefficients), x), o.coefficients);
  for (std::int64_t k = 0; k < o.ns_steps; ++k) {
    x = newton_schulz_step(x, quintic(o.coefficients, k));
    const bool last = k + 1 == o.ns_steps;
    if (o.reproject == "final" && !last) continue;
    const double t = inner(x, u);
    x = combine(1.0, x, -t, u);
    // The quintic maps the singular values of its range to at most range.output; subtracting t U
    // can add |t| to one. Once all are back in the range of the next step, that step is safe again.
    if (o.reproject == "guarded" && !last) {
      const double most = range(o.coefficients, k).output + std::abs(t);
      x = scale(std::min(1.0, range(o.coefficients, k + 1).input / most), x);
    }
  }
  return x;
}

// The step of a radius, or of its logarithm: outwards only a part of it.
double braked(const Options& o, double step) { return step * (step > 0.0 ? o.brake : 1.0); }

// The factor on a radius that is shorter than `target`, in a step of a matrix like w that turns.
double pulled(const Options& o, double rho, double target, double gamma, const Matrix& w) {
  if (rho >= target || o.lr_rho == 0.0) return 1.0;
  double angle = o.lr * gamma;
  if (o.scale == "kernel") angle *= std::sqrt(static_cast<double>(std::min(w.rows, w.cols)));
  return std::pow(target / rho, std::min(1.0, o.pull * angle));
}

// Item 3 and its two variants; `pull` is the factor of an adaptive radius besides.
double next_radius(const Options& o, double rho, double s, double pull, Scalars& scalars) {
  if (o.radius == "fixed") {
    // Stored while the matrix was still zero: there was no radius to keep.
    if (scalars.radius <= o.eps) scalars.radius = rho;
    return scalars.radius;
  }
  if (o.radius == "learned") return std::max(rho + braked(o, -o.lr_rho * s), o.floor * rho);
  scalars.average = 0.9 * scalars.average + 0.1 * s;
  scalars.average_sq = 0.95 * scalars.average_sq + 0.05 * s * s;
  const double a = scalars.average / (1.0 - std::pow(0.9, scalars.steps));
  const double b = scalars.average_sq / (1.0 - std::pow(0.95, scalars.steps));
  const double change = braked(o, std::log(pull) - o.lr_rho * a / (std::sqrt(b) + o.eps));
  return std::max(rho * std::exp(change), o.floor * rho);
}

double angle_of(const Options& o, const Diagnostics& d, const Matrix& w) {
  const double theta = o.lr * d.gamma * d.q;
  return o.scale == "angle" ? theta / std::sqrt(static_cast<double>(std::min(w.rows, w.cols)))
                            : theta;
}

double damping(const Options& o, double m_norm, double g_norm, Scalars& scalars) {
  if (!o.snr) return 1.0;
  scalars.snr_norm = o.beta * scalars.snr_norm + g_norm + o.eps;
  return std::clamp(m_norm / scalars.snr_norm, o.snr_min, 1.0);
}

// A matrix without a direction: held while the buffer gathers, or started along it, as far as a
// step of one angle would lead a matrix of norm start_norm. There is no U to project from.
Diagnostics step_zero(const Options& o, Matrix& w, const Matrix& g, Matrix& buffer,
                      Scalars& scalars, double* averages) {
  Diagnostics d;
  d.rho = d.rho_next = norm(w);
  buffer = combine(o.beta, buffer, 1.0, g);
  const Matrix start = o.nesterov ? combine(o.beta, buffer, 1.0, g) : buffer;
  if (!(scalars.start_norm > 0.0) || !(norm(start) > o.eps_ns)) return d;
  d.m_norm = norm(buffer);
  d.gamma = damping(o, d.m_norm, norm(g), scalars);
  Matrix q = kernel(o, start, Matrix(w.rows, w.cols));
  if (o.rows) q = normalized_rows(q, o.row_beta, averages);
  d.q = norm(q);
  d.theta = angle_of(o, d, w);
  d.rho_next = d.theta * scalars.start_norm;
  w = scale(-d.rho_next / d.q, q);
  return d;
}

// `averages` is that of the block's first row; null where rows are not normalised.
Diagnostics step_block(const Options& o, Matrix& w, const Matrix& g, Matrix& buffer,
                       Scalars& scalars, double* averages) {
  Diagnostics d;
  d.rho = d.rho_next = norm(w);
  if (d.rho <= o.eps) return step_zero(o, w, g, buffer, scalars, averages);
  scalars.steps += 1.0;                    // of the averages, which a held step leaves unchanged
  const Matrix u = scale(1.0 / d.rho, w);  // 1
  buffer = combine(o.beta, project(buffer, u), 1.0, g);  // 2
  d.s = inner(buffer, u);                                // 3
  const Matrix tangent = combine(1.0, buffer, -d.s, u);  // 4
  const Matrix g_tangent = project(g, u);
  d.m_norm = norm(tangent);
  d.gamma = damping(o, d.m_norm, norm(g_tangent), scalars);

  Matrix u_next = u;
  const Matrix start = o.nesterov ? combine(o.beta, tangent, 1.0, g_tangent) : tangent;
  const bool turns = o.direction != "fixed" && norm(start) > o.eps_ns;
  const double target = std::sqrt(static_cast<double>(w.rows));
  const bool grows = turns && scalars.start_norm == 0.0;
  const double pull = grows ? pulled(o, d.rho, target, d.gamma, w) : 1.0;
  d.rho_next = next_radius(o, d.rho, d.s, pull, scalars);
  if (turns) {
    Matrix q = kernel(o, start, u);  // 5, 6
    if (o.rows) q = project(normalized_rows(q, o.row_beta, averages), u);
    d.q = norm(q);
    if (d.q != 0.0) {  // 7; NaN passes through
      const Matrix direction = scale(1.0 / d.q, q);
      d.theta = angle_of(o, d, w);
      u_next = o.direction == "geodesic"
                   ? combine(std::cos(d.theta), u, -std::sin(d.theta), direction)
                   : combine(1.0, u, -d.theta, direction);
      u_next = scale(1.0 / norm(u_next), u_next);
    }
  }
  w = scale(d.rho_next, u_next);  // 8
  return d;
}

// radius_scope = rows: the same with U, s, rho and theta row by row.
Matrix row_of(const Matrix& a, std::size_t i) {
  Matrix row(1, a.cols);
  for (std::size_t j = 0; j < a.cols; ++j) row(0, j) = a(i, j);
  return row;
}
void set_row(Matrix& a, std::size_t i, const Matrix& row) {
  for (std::size_t j = 0; j < a.cols; ++j) a(i, j) = row(0, j);
}

// `radii` are the scalars of the rows; snr_norm and steps of `scalars` are the matrix's.
Diagnostics step_rows(const Options& o, Matrix& w, const Matrix& g, Matrix& buffer,
                      Scalars& scalars, std::vector<Scalars>& radii, double* averages) {
  Diagnostics d;
  d.rho = d.rho_next = norm(w);
  if (d.rho <= o.eps) {
    buffer = combine(o.beta, buffer, 1.0, g);
    return d;
  }
  d.s = inner(g, w) / d.rho;
  scalars.steps += 1.0;
  Matrix u = w, tangent = w, g_tangent = g;
  std::vector<double> radius(w.rows), along_u(w.rows), next(w.rows, 0.0);
  std::vector<bool> held(w.rows);
  for (std::size_t i = 0; i < w.rows; ++i) {
    const Matrix gradient = row_of(g, i);
    Matrix b = row_of(buffer, i);
    const double rho = norm(row_of(w, i));
    held[i] = rho <= o.eps;
    const Matrix own = held[i] ? Matrix(1, w.cols) : scale(1.0 / rho, row_of(w, i));
    b = combine(o.beta, project(b, own), 1.0, gradient);
    const double s = inner(b, own);
    radii[i].steps = scalars.steps;
    radius[i] = rho;
    along_u[i] = s;
    set_row(u, i, own);
    set_row(buffer, i, b);
    set_row(tangent, i, held[i] ? Matrix(1, w.cols) : combine(1.0, b, -s, own));
    set_row(g_tangent, i, held[i] ? Matrix(1, w.cols) : project(gradient, own));
  }
  d.m_norm = norm(tangent);
  d.gamma = damping(o, d.m_norm, norm(g_tangent), scalars);
  const Matrix start = o.nesterov ? combine(o.beta, tangent, 1.0, g_tangent) : tangent;
  const bool turns = o.direction != "fixed" && norm(start) > o.eps_ns;
  d.rho_next = 0.0;
  for (std::size_t i = 0; i < w.rows; ++i) {
    const double pull = turns && !held[i] ? pulled(o, radius[i], 1.0, d.gamma, w) : 1.0;
    next[i] = held[i] ? radius[i] : next_radius(o, radius[i], along_u[i], pull, radii[i]);
    d.rho_next += next[i] * next[i];
  }
  d.rho_next = std::sqrt(d.rho_next);
  Matrix q(w.rows, w.cols);
  if (turns) {
    q = scale(1.0 / norm(start), start);
    if (o.conditioner != "none")
      q = newton_schulz(scale(1.0 / margin(o.coefficients), q), o.coefficients, o.ns_steps);
    for (std::size_t i = 0; i < w.rows; ++i) set_row(q, i, project(row_of(q, i), row_of(u, i)));
    if (o.rows) q = normalized_rows(q, o.row_beta, averages);
  }
  d.q = norm(q);
  d.theta = o.lr * d.gamma * d.q;
  double per_norm = o.lr * d.gamma * std::sqrt(static_cast<double>(w.rows));
  if (o.scale == "angle") {
    const double side = std::sqrt(static_cast<double>(std::min(w.rows, w.cols)));
    d.theta /= side;
    per_norm /= side;
  }
  for (std::size_t i = 0; i < w.rows; ++i) {
    if (held[i]) continue;
    Matrix own = row_of(u, i);
    const Matrix along = row_of(q, i);
    const double length = norm(along), theta = per_norm * length;
    if (length != 0.0) {
      own = o.direction == "geodesic"
                ? combine(std::cos(theta), own, -std::sin(theta) / length, along)
                : combine(1.0, own, -theta / length, along);
    }
    set_row(w, i, scale(next[i] / norm(own), own));
  }
  return d;
}

}  // namespace

State rode_state(const Settings& settings, const Treatment& treatment, const Tensor& parameter) {
  const Options o = read(settings, 1.0);
  std::vector<double> norms;
  for (const Matrix& w : split(parameter, treatment)) norms.push_back(norm(w));
  const Tensor zero = per_block(std::vector<double>(norms.size(), 0.0));
  State state{{"momentum", zeros_like(parameter)}};
  if (o.snr) state["snr_norm"] = zero;
  if (o.starts) state["start_norm"] = zero;  // until set_starts
  if (o.radius == "fixed") state["radius"] = per_block(norms);
  if (o.radius == "adaptive") state["radius_avg"] = state["radius_avg_sq"] = state["step"] = zero;
  if (o.row_radius) {
    for (const char* key : {"radius", "radius_avg", "radius_avg_sq"})
      if (state.contains(key)) state[key] = per_row(split(parameter, treatment));
  }
  if (o.rows) state["row_avg_sq"] = per_row(split(parameter, treatment));
  return state;
}

std::vector<Diagnostics> rode_step(const Settings& settings, const Treatment& treatment,
                                   Tensor& parameter, const Tensor& gradient, State& state,
                                   double multiplier) {
  const Options o = read(settings, multiplier);
  std::vector<Matrix> weights = split(parameter, treatment);
  const std::vector<Matrix> gradients = split(gradient, treatment);
  Tensor& momentum = entry(state, "momentum", parameter.data.size());
  std::vector<Matrix> buffers = split(momentum, treatment);

  std::vector<Diagnostics> diagnostics;
  double* averages = o.rows ? state.at("row_avg_sq").data.data() : nullptr;
  std::size_t first_row = 0;
  for (std::size_t k = 0; k < weights.size(); ++k) {
    Scalars scalars;
    const auto exchange = [&](bool store) {
      const auto one = [&](bool used, const char* key, double& value) {
        if (!used) return;
        double& kept = entry(state, key, weights.size()).data[k];
        if (store)
          kept = value;
        else
          value = kept;
      };
      const bool fixed = o.radius == "fixed", adaptive = o.radius == "adaptive";
      one(o.snr, "snr_norm", scalars.snr_norm);
      one(o.starts, "start_norm", scalars.start_norm);
      one(fixed && !o.row_radius, "radius", scalars.radius);
      one(adaptive && !o.row_radius, "radius_avg", scalars.average);
      one(adaptive && !o.row_radius, "radius_avg_sq", scalars.average_sq);
      one(adaptive, "step", scalars.steps);
    };
    std::vector<Scalars> radii(o.row_radius ? weights[k].rows : 0);
    const auto exchange_rows = [&](bool store) {
      for (std::size_t i = 0; i < radii.size(); ++i) {
        const auto one = [&](const char* key, double& value) {
          if (!state.contains(key)) return;
          double& kept = state.at(key).data[first_row + i];
          (store ? kept : value) = store ? value : kept;
        };
        one("radius", radii[i].radius);
        one("radius_avg", radii[i].average);
        one("radius_avg_sq", radii[i].average_sq);
      }
    };
    exchange(false);
    exchange_rows(false);
    diagnostics.push_back(
        o.row_radius ? step_rows(o, weights[k], gradients[k], buffers[k], scalars, radii, averages)
                     : step_block(o, weights[k], gradients[k], buffers[k], scalars, averages));
    if (o.rows) averages += weights[k].rows;
    exchange(true);
    exchange_rows(true);
    first_row += weights[k].rows;
  }
  join(weights, treatment, parameter);
  join(buffers, treatment, momentum);
  return diagnostics;
}

}  // namespace rode::reference
