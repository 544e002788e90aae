# SPDX-License-Identifier: Apache-2.0
"""Muown in plain numpy: W = g v / |v| row by row, with v kept as it is."""

import math

import numpy as np

from .matrix import MatrixView, newton_schulz, norm
from .muon import update_scale


class Muown:
    def __init__(self, name, w, options, in_out=False, dtype=np.float64):
        self.o = options
        self.dtype = dtype
        self.view = MatrixView(name, w.shape, options["splits"], in_out)
        matrix = self.view.matrix(w.astype(dtype))
        rows = self.view.fan_out
        self.lengths = np.sqrt(np.sum(np.square(matrix), axis=1))  # g, with its sign
        self.directions = matrix.copy()  # v
        self.state = {
            "momentum": np.zeros(w.shape, dtype),
            "radius": self.lengths,
            "direction_norm": self.lengths.copy(),
            "radius_avg": np.zeros(rows),
            "radius_avg_sq": np.zeros(rows),
            "step": np.zeros(len(self.view.blocks), np.int64),
        }

    def step(self, w, g):
        weight = self.view.matrix(w.astype(self.dtype))
        grad = self.view.matrix(g.astype(self.dtype))
        buffer = self.view.matrix(self.state["momentum"]).copy()
        new_weight = weight.copy()
        self.state["step"] = self.state["step"] + 1
        for rows in self.view.blocks:
            new_weight[rows], buffer[rows] = self._block(
                rows, weight[rows], grad[rows], buffer[rows]
            )
        self.state["momentum"] = self.view.tensor(buffer)
        self.state["direction_norm"] = np.sqrt(np.sum(np.square(self.directions), axis=1))
        return self.view.tensor(new_weight)

    def _block(self, rows, w, grad, buffer):
        o, state = self.o, self.state
        alive = (np.sum(np.square(w), axis=1) > 0)[:, None]
        v, length = self.directions[rows], self.lengths[rows][:, None]
        size = np.sqrt(np.sum(np.square(v), axis=1, keepdims=True))
        unit = np.divide(v, size, out=np.zeros_like(v), where=alive)
        radial = np.sum(grad * unit, axis=1, keepdims=True)
        ratio = np.divide(length, size, out=np.zeros_like(size), where=alive)
        slope = ratio * (grad - radial * unit)
        buffer = o["momentum"] * buffer + slope
        start = slope + o["momentum"] * buffer if o["nesterov"] else buffer
        start = np.where(alive, start, 0)
        kernel = newton_schulz(start / (norm(start) + o["eps"]), o["coefficients"], o["ns_steps"])
        moved = v - o["lr"] * update_scale("rms", *w.shape) * kernel

        t = int(state["step"][0])
        beta1, beta2 = o["betas_radius"]
        radial = radial[:, 0]
        live = alive[:, 0]
        a = np.where(live, beta1 * state["radius_avg"][rows] + (1 - beta1) * radial, 0)
        b = np.where(live, beta2 * state["radius_avg_sq"][rows] + (1 - beta2) * radial**2, 0)
        state["radius_avg"][rows], state["radius_avg_sq"][rows] = a, b
        change = (a / (1 - beta1**t)) / (np.sqrt(b / (1 - beta2**t)) + o["eps_radius"])
        new_length = np.where(live, self.lengths[rows] - o["lr_rho"] * change, 0)
        moved_size = np.sqrt(np.sum(np.square(moved), axis=1, keepdims=True))
        unit = np.divide(moved, moved_size, out=np.zeros_like(moved), where=alive)
        new = new_length[:, None] * unit
        decay = o["lr"] * o["weight_decay"]
        self.directions[rows] = np.where(alive, moved, v)
        if decay != 0:
            new = new - decay * w
            new_length = np.sqrt(np.sum(np.square(new), axis=1))
            # The authors take v from W again: decay turns it, and leaves its length.
            size = np.where(alive, moved_size, 0)
            unit = np.divide(new, new_length[:, None], out=np.zeros_like(new), where=alive)
            self.directions[rows] = np.where(alive, size * unit, v)
        self.lengths[rows] = new_length
        assert math.isfinite(norm(new))
        return new, buffer
