# SPDX-License-Identifier: Apache-2.0
"""RODE in plain numpy, line by line from Algorithm 1, with every variant."""

import math

import numpy as np

from .matrix import (
    RANGES,
    MatrixView,
    guard,
    inner,
    newton_schulz,
    norm,
    normalized_rows,
    polynomial,
    scaled_start,
    triple,
)

# The quintic of the paper stays below P_MAX on [0, BOUND]; its unstable fixed point is
# UNSTABLE. The guard keeps every singular value within BOUND.
(BOUND, P_MAX), UNSTABLE = RANGES["jordan"][0], 1.2637
GUARD_SLEEPS = BOUND - P_MAX

DIAGNOSTICS = ("rho", "rho_next", "s", "q", "theta", "gamma", "m_norm")


class Rode:
    def __init__(self, name, w, options, in_out=False, dtype=np.float64):
        self.o = options
        self.dtype = dtype
        self.view = MatrixView(name, w.shape, options["splits"], in_out)
        count = len(self.view.blocks)
        self.per_row = options["radius_scope"] == "rows"
        radii = self.view.fan_out if self.per_row else count
        matrix = self.view.matrix(w.astype(dtype))
        self.state = {"momentum": np.zeros(w.shape, dtype)}
        if options["snr"]:
            self.state["snr_norm"] = np.zeros(count)
        if options["on_zero"] == "start":
            self.state["start_norm"] = self._start_norms(matrix)
        if options["radius"] == "fixed":
            self.state["radius"] = (
                np.sqrt(np.sum(np.square(matrix), axis=1))
                if self.per_row
                else np.array([norm(matrix[rows]) for rows in self.view.blocks])
            )
        if options["radius"] == "adaptive":
            self.state["radius_avg"] = np.zeros(radii)
            self.state["radius_avg_sq"] = np.zeros(radii)
            self.state["step"] = np.zeros(count, np.int64)
        if options["normalize"] == "rows":
            self.state["row_avg_sq"] = np.zeros(self.view.fan_out)
        self.diag = {}
        # Inner products <X, U> that each reprojection except the last removed: for |t| up to
        # GUARD_SLEEPS the guard has no effect.
        self.max_t = 0.0

    def step(self, w, g):
        weight, grad = (
            self.view.matrix(w.astype(self.dtype)),
            self.view.matrix(g.astype(self.dtype)),
        )
        buffer = self.view.matrix(self.state["momentum"])
        new_weight, new_buffer = weight.copy(), buffer.copy()
        rows_of_diag = []
        for i, rows in enumerate(self.view.blocks):
            block = self._rows if self.per_row else self._block
            result = block(i, rows, weight[rows], grad[rows], buffer[rows])
            new_weight[rows], new_buffer[rows], diag = result
            rows_of_diag.append(diag)
        self.state["momentum"] = self.view.tensor(new_buffer)
        self.diag = {key: np.array([d[key] for d in rows_of_diag]) for key in DIAGNOSTICS}
        return self.view.tensor(new_weight)

    def _block(self, i, rows, w, g, b):
        o = self.o
        beta = o["momentum"]
        diag = dict.fromkeys(DIAGNOSTICS, 0.0)
        diag["gamma"] = 1.0
        rho = norm(w)
        if rho <= o["eps"]:
            return self._zero(i, rows, w, g, beta * b + g, diag)
        self._count(i)

        u = w / rho
        project = lambda x: x - inner(x, u) * u
        b_new = beta * project(b) + g
        s = inner(g, u)
        g_perp = project(g)
        m = beta * project(b) + g_perp
        m_norm = norm(m)
        gamma = self._damping(i, m_norm, norm(g_perp))
        start = beta * m + g_perp if o["nesterov"] else m
        start_norm = norm(start)
        turns = o["direction"] != "fixed" and start_norm > o["eps_ns"]
        began = "start_norm" in self.state and self.state["start_norm"][i] > 0
        pull = self._pull(rho, math.sqrt(len(w)), gamma, w) if turns and not began else 0.0
        rho_next = self._radius(i, i, rho, s, pull)
        diag.update(rho=rho, rho_next=rho_next, s=s, gamma=gamma, m_norm=m_norm)

        u_next = u
        if turns:
            kernel = self._kernel(start / start_norm, u)
            if o["normalize"] == "rows":
                averages = self.state["row_avg_sq"][rows]
                kernel = project(normalized_rows(kernel, averages, o["row_beta"]))
            q = norm(kernel)
            if q > 0:
                theta = self._angle(gamma * q, w)
                diag.update(q=q, theta=theta)
                d = kernel / q
                if o["direction"] == "geodesic":
                    u_next = math.cos(theta) * u - math.sin(theta) * d
                else:
                    u_next = u - theta * d
                u_next = u_next / norm(u_next)
        return rho_next * u_next, b_new, diag

    def _start_norms(self, matrix):
        """Of the blocks that are zero: their norm at the median root mean square of the others, or
        with elements of 1 / sqrt(fan-in)."""
        blocks = [matrix[rows] for rows in self.view.blocks]
        is_zero = [norm(w) <= self.o["eps"] for w in blocks]
        others = [norm(w) / math.sqrt(w.size) for w, zero in zip(blocks, is_zero) if not zero]
        rms = np.median(others) if others else 1 / math.sqrt(matrix.shape[1])
        return np.array([z * math.sqrt(w.size) * rms for w, z in zip(blocks, is_zero)])

    def _zero(self, i, rows, w, g, b_new, diag):
        """Held; the buffer accumulates, unprojected. Or started along it, so far that a matrix of
        norm `start_norm` would have turned by the angle of a step."""
        o = self.o
        start = o["momentum"] * b_new + g if o["nesterov"] else b_new
        length = self.state["start_norm"][i] if "start_norm" in self.state else 0
        if not length or norm(start) <= o["eps_ns"]:
            return w, b_new, diag
        gamma = self._damping(i, norm(b_new), norm(g))
        kernel = self._kernel(start / norm(start), np.zeros_like(w))
        if o["normalize"] == "rows":
            kernel = normalized_rows(kernel, self.state["row_avg_sq"][rows], o["row_beta"])
        q = norm(kernel)
        theta = self._angle(gamma * q, w)
        diag.update(rho_next=theta * length, q=q, theta=theta, gamma=gamma, m_norm=norm(b_new))
        return -theta * length * kernel / q, b_new, diag

    def _count(self, i):
        if "step" in self.state:
            self.state["step"][i] += 1

    def _angle(self, q, w):
        return self.o["lr"] * q / (math.sqrt(min(w.shape)) if self.o["scale"] == "angle" else 1)

    def _damping(self, i, m_norm, g_norm):
        o = self.o
        if not o["snr"]:
            return 1.0
        v = o["momentum"] * self.state["snr_norm"][i] + g_norm + o["eps"]
        self.state["snr_norm"][i] = v
        return min(max(m_norm / v, o["snr_min"]), 1.0)

    def _rows(self, i, rows, w, g, b):
        """radius_scope = rows: every row is a point on a sphere of its own."""
        o = self.o
        beta = o["momentum"]
        diag = dict.fromkeys(DIAGNOSTICS, 0.0)
        diag["gamma"] = 1.0
        whole = norm(w)
        if whole <= o["eps"]:
            return w, beta * b + g, diag
        self._count(i)
        rho = np.sqrt(np.sum(np.square(w), axis=1, keepdims=True))
        held = rho <= o["eps"]
        u = np.where(held, 0, w / np.where(held, 1, rho))
        project = lambda x: x - np.sum(x * u, axis=1, keepdims=True) * u
        b_new = beta * project(b) + g
        s = np.sum(g * u, axis=1)
        m, g_perp = (np.where(held, 0, project(x)) for x in (b_new, g))
        gamma = self._damping(i, norm(m), norm(g_perp))
        start = beta * m + g_perp if o["nesterov"] else m
        turns = o["direction"] != "fixed" and norm(start) > o["eps_ns"]
        rho_next = rho.copy()
        for k in np.flatnonzero(~held[:, 0]):
            own = float(rho[k, 0])
            pull = self._pull(own, 1.0, gamma, w) if turns else 0.0
            rho_next[k] = self._radius(rows.start + k, i, own, float(s[k]), pull)
        diag.update(rho=whole, rho_next=norm(rho_next), s=inner(g, w) / whole, m_norm=norm(m))
        diag["gamma"] = gamma
        if not turns:
            return np.where(held, w, rho_next * u), b_new, diag
        kernel = start / norm(start)
        if o["conditioner"] != "none":
            kernel = newton_schulz(kernel, o["coefficients"], o["ns_steps"])
        kernel = project(kernel)
        if o["normalize"] == "rows":
            kernel = normalized_rows(kernel, self.state["row_avg_sq"][rows], o["row_beta"])
        q = np.sqrt(np.sum(np.square(kernel), axis=1, keepdims=True))
        rate = o["lr"] * gamma / (math.sqrt(min(w.shape)) if o["scale"] == "angle" else 1)
        theta = rate * math.sqrt(len(w)) * q
        diag.update(q=norm(kernel), theta=rate * norm(kernel))
        d = np.divide(kernel, q, out=np.zeros_like(kernel), where=q > 0)
        if o["direction"] == "geodesic":
            turned = np.cos(theta) * u - np.sin(theta) * d
        else:
            turned = (u - theta * d) / np.sqrt(1 + theta**2)
        return np.where(held, w, rho_next * turned), b_new, diag

    def _pull(self, rho, target, gamma, w):
        """What the logarithm of a radius below the target gains while the direction turns."""
        o = self.o
        if o["lr_rho"] == 0:
            return 0.0
        angle = o["lr"] * gamma * (1 if o["scale"] == "angle" else math.sqrt(min(w.shape)))
        return min(1.0, o["radius_pull"] * angle) * max(0.0, math.log(target / rho))

    def _radius(self, i, block, rho, s, pull):
        o, kind = self.o, self.o["radius"]
        if kind == "fixed":
            if self.state["radius"][i] <= o["eps"]:
                self.state["radius"][i] = rho
            return float(self.state["radius"][i])
        if kind == "learned":
            outward = o["radius_brake"] if s < 0 else 1.0
            return max(rho - outward * o["lr_rho"] * s, o["floor"] * rho)
        t = int(self.state["step"][block])
        a = self.state["radius_avg"][i] = 0.9 * self.state["radius_avg"][i] + 0.1 * s
        b = self.state["radius_avg_sq"][i] = 0.95 * self.state["radius_avg_sq"][i] + 0.05 * s * s
        a_hat, b_hat = a / (1 - 0.9**t), b / (1 - 0.95**t)
        step = pull - o["lr_rho"] * a_hat / (math.sqrt(b_hat) + o["eps"])
        change = math.exp(step * (o["radius_brake"] if step > 0 else 1.0))
        return float(rho * max(change, o["floor"]))

    def _kernel(self, x, u):
        o, steps = self.o, self.o["ns_steps"]
        if o["conditioner"] == "none":
            return x
        wide = x.shape[0] < x.shape[1]
        if wide:
            x, u = x.T, u.T
        x = scaled_start(x, o["coefficients"])
        for k in range(steps):
            x = polynomial(x, triple(o["coefficients"], k))
            last = k == steps - 1
            if o["reproject"] == "final" and not last:
                continue
            t = inner(x, u)
            x = x - t * u
            if not last:
                self.max_t = max(self.max_t, abs(t))
                if o["reproject"] == "guarded":
                    x = x * guard(o["coefficients"], k, t)
        return x.T if wide else x
