# SPDX-License-Identifier: Apache-2.0
"""SOAP in plain numpy for tensors of any rank, one preconditioner per mode."""

import math

import numpy as np


def mode_gram(g, mode):
    """G contracted with itself over every mode except one."""
    unfolded = np.moveaxis(g, mode, 0).reshape(g.shape[mode], -1)
    return unfolded @ unfolded.T


def along(x, matrix, mode):
    """matrix applied to x along one mode."""
    return np.moveaxis(np.tensordot(matrix, x, axes=(1, mode)), 0, mode)


class Soap:
    def __init__(self, name, w, options, in_out=False, dtype=np.float64):
        self.o = options
        self.dtype = dtype
        self.modes = [i for i, d in enumerate(w.shape) if d <= options["max_precond_dim"]]
        self.state = {
            "exp_avg": np.zeros(w.shape, dtype),
            "exp_avg_sq": np.zeros(w.shape, dtype),
            "step": np.zeros(1, np.int64),
        }
        for i in self.modes:
            self.state[f"gram.{i}"] = np.zeros((w.shape[i],) * 2, dtype)
            self.state[f"basis.{i}"] = np.zeros((w.shape[i],) * 2, dtype)
        # Smallest gap between neighbouring eigenvalue estimates, relative to the largest:
        # a case is well posed only while this exceeds the rounding of its products.
        self.min_gap = math.inf

    def _basis(self, i):
        return self.state[f"basis.{i}"]

    def _into(self, x):
        for i in self.modes:
            x = along(x, self._basis(i).T, i)
        return x

    def _back(self, x):
        for i in self.modes:
            x = along(x, self._basis(i), i)
        return x

    def _accumulate(self, g):
        beta = self.o["betas"][1]
        for i in self.modes:
            key = f"gram.{i}"
            self.state[key] = beta * self.state[key] + (1 - beta) * mode_gram(g, i)

    def _note_gap(self, descending):
        if len(descending) > 1:
            gap = np.min(descending[:-1] - descending[1:]) / abs(descending[0])
            self.min_gap = min(self.min_gap, float(gap))

    def step(self, w, g):
        o, st, (b1, b2) = self.o, self.state, self.o["betas"]
        w, g = w.astype(self.dtype), g.astype(self.dtype)
        st["step"] = st["step"] + 1
        k = int(st["step"][0]) - 1
        if k == 0:
            self._accumulate(g)
            for i in self.modes:
                lifted = st[f"gram.{i}"] + 1e-30 * np.eye(w.shape[i], dtype=self.dtype)
                values, vectors = np.linalg.eigh(lifted)
                st[f"basis.{i}"] = vectors[:, ::-1]
                self._note_gap(values[::-1])
            return w

        rotated = self._into(g)
        st["exp_avg"] = b1 * st["exp_avg"] + (1 - b1) * rotated
        st["exp_avg_sq"] = b2 * st["exp_avg_sq"] + (1 - b2) * rotated * rotated
        direction = self._back(st["exp_avg"] / (np.sqrt(st["exp_avg_sq"]) + o["eps"]))
        rate = o["lr"] * math.sqrt(1 - b2**k) / (1 - b1**k)
        w = w - rate * direction
        w = w - o["lr"] * o["weight_decay"] * w
        self._accumulate(g)
        if k % o["precondition_frequency"] == 0:
            self._refresh()
        return w

    def _refresh(self):
        """One step of orthogonal iteration, columns sorted by their eigenvalue estimate."""
        st = self.state
        momentum = self._back(st["exp_avg"])
        for i in self.modes:
            gram, basis = st[f"gram.{i}"], self._basis(i)
            estimate = np.diag(basis.T @ gram @ basis)
            order = np.argsort(-estimate, kind="stable")
            self._note_gap(estimate[order])
            st["exp_avg_sq"] = np.take(st["exp_avg_sq"], order, axis=i)
            st[f"basis.{i}"] = np.linalg.qr(gram @ basis[:, order])[0]
        st["exp_avg"] = self._into(momentum)
