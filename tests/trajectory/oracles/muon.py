# SPDX-License-Identifier: Apache-2.0
"""The Muon family and MARS-M in plain numpy."""

import math

import numpy as np

from .cautious import decay
from .matrix import MatrixView, newton_schulz, norm, normalized_rows


def update_scale(rule, fan_out, fan_in):
    if rule == "original":
        return math.sqrt(max(1.0, fan_out / fan_in))
    return 0.2 * math.sqrt(max(fan_out, fan_in))


class Muon:
    def __init__(self, name, w, options, in_out=False, dtype=np.float64):
        self.o = options
        self.dtype = dtype
        self.view = MatrixView(name, w.shape, options["splits"], in_out)
        self.state = {"momentum": np.zeros(w.shape, dtype)}
        if options["constraint"] != "none":
            matrix = self.view.matrix(w.astype(dtype))
            self.state["radius"] = np.array([norm(matrix[rows]) for rows in self.view.blocks])
        if options["normalize"] == "rows":
            self.state["row_avg_sq"] = np.zeros(self.view.fan_out)

    def step(self, w, g):
        mu = self.o["momentum"]
        g = g.astype(self.dtype)
        buffer = mu * self.state["momentum"] + (1 - mu) * g
        start = (1 - mu) * g + mu * buffer if self.o["nesterov"] else buffer
        self.state["momentum"] = buffer
        weight, start = self.view.matrix(w.astype(self.dtype)), self.view.matrix(start)
        new_weight = weight.copy()
        for i, rows in enumerate(self.view.blocks):
            new_weight[rows] = self._block(i, rows, weight[rows], start[rows])
        return self.view.tensor(new_weight)

    def _block(self, i, rows, w, start):
        o, lr = self.o, self.o["lr"]
        kernel = newton_schulz(start / max(norm(start), o["eps"]), o["coefficients"], o["ns_steps"])
        if o["normalize"] == "rows":
            kernel = normalized_rows(kernel, self.state["row_avg_sq"][rows], o["row_beta"])
        scale = update_scale(o["scale"], *w.shape)
        moved = w - lr * decay(w, kernel, o["weight_decay"], o["cautious_decay"])
        moved = moved - lr * scale * kernel
        if o["constraint"] == "none":
            return moved
        radius = float(self.state["radius"][i])
        if radius == 0:
            return w
        if o["constraint"] == "hyperball":
            size = norm(kernel)
            moved = w if size == 0 else w - lr * radius * kernel / size
        return radius * moved / norm(moved)


class MarsM:
    """Approximate mode: the previous gradient is stored, not evaluated again."""

    def __init__(self, name, w, options, in_out=False, dtype=np.float64):
        self.o = options
        self.dtype = dtype
        self.view = MatrixView(name, w.shape, "", in_out)
        self.state = {
            "momentum": np.zeros(w.shape, dtype),
            "previous_grad": np.zeros(w.shape, dtype),
        }
        if options["normalize"] == "rows":
            self.state["row_avg_sq"] = np.zeros(self.view.fan_out)

    def step(self, w, g):
        o, beta = self.o, self.o["momentum"]
        w, g = w.astype(self.dtype), g.astype(self.dtype)
        factor = o["gamma"] * beta / (1 - beta)
        corrected = g + factor * (g - self.state["previous_grad"])
        size = norm(corrected)
        if size > 1:
            corrected = corrected / size
        momentum = beta * self.state["momentum"] + (1 - beta) * corrected
        self.state |= {"momentum": momentum, "previous_grad": g.copy()}
        m = self.view.matrix(momentum)
        kernel = newton_schulz(m / (norm(m) + o["eps"]), o["coefficients"], o["ns_steps"])
        if o["normalize"] == "rows":
            kernel = normalized_rows(kernel, self.state["row_avg_sq"], o["row_beta"])
        scale = update_scale("rms", *m.shape)
        update = self.view.tensor(kernel)
        decayed = w - o["lr"] * decay(w, update, o["weight_decay"], o["cautious_decay"])
        return decayed - o["lr"] * scale * update
