# SPDX-License-Identifier: Apache-2.0
"""AdamW, AdEMAMix, Adafactor, Lion and SGD in plain numpy; AdamW and SGD also with PyTorch."""

import math

import numpy as np
import torch

from .cautious import decay


class AdamW:
    def __init__(
        self, w, lr, weight_decay, betas, eps, maximize=False, cautious=False, dtype=np.float64
    ):
        self.lr, self.wd, self.betas, self.eps, self.dtype = lr, weight_decay, betas, eps, dtype
        self.maximize, self.cautious = maximize, cautious
        self.state = {
            "exp_avg": np.zeros(w.shape, dtype),
            "exp_avg_sq": np.zeros(w.shape, dtype),
            "step": np.zeros(1, np.int64),
        }

    def step(self, w, g):
        w, g, st, (b1, b2) = w.astype(self.dtype), g.astype(self.dtype), self.state, self.betas
        g = -g if self.maximize else g
        st["step"] = st["step"] + 1
        t = int(st["step"][0])
        st["exp_avg"] = b1 * st["exp_avg"] + (1 - b1) * g
        st["exp_avg_sq"] = b2 * st["exp_avg_sq"] + (1 - b2) * g * g
        m_hat = st["exp_avg"] / (1 - b1**t)
        v_hat = st["exp_avg_sq"] / (1 - b2**t)
        update = m_hat / (np.sqrt(v_hat) + self.eps)
        return w - self.lr * (update + decay(w, update, self.wd, self.cautious))


class AdEMAMix:
    def __init__(self, w, lr, weight_decay, betas, alpha, eps, warmup_steps, dtype=np.float64):
        self.lr, self.wd, self.betas, self.alpha = lr, weight_decay, betas, alpha
        self.eps, self.warmup, self.dtype = eps, warmup_steps, dtype
        zeros = lambda: np.zeros(w.shape, dtype)
        self.state = {
            "exp_avg_fast": zeros(),
            "exp_avg_slow": zeros(),
            "exp_avg_sq": zeros(),
            "step": np.zeros(1, np.int64),
        }

    def _scheduled(self, t):
        b1, _, b3 = self.betas
        if t >= self.warmup:
            return self.alpha, b3
        part = t / self.warmup
        half_life = lambda b: math.log(0.5) / math.log(b + 1e-8) - 1
        s = (1 - part) * half_life(b1) + part * half_life(b3)
        return self.alpha * part, 0.5 ** (1 / (s + 1))

    def step(self, w, g):
        w, g, st, (b1, b2, _) = w.astype(self.dtype), g.astype(self.dtype), self.state, self.betas
        st["step"] = st["step"] + 1
        t = int(st["step"][0])
        alpha, b3 = self._scheduled(t)
        st["exp_avg_fast"] = b1 * st["exp_avg_fast"] + (1 - b1) * g
        st["exp_avg_slow"] = b3 * st["exp_avg_slow"] + (1 - b3) * g
        st["exp_avg_sq"] = b2 * st["exp_avg_sq"] + (1 - b2) * g * g
        direction = st["exp_avg_fast"] / (1 - b1**t) + alpha * st["exp_avg_slow"]
        scale = np.sqrt(st["exp_avg_sq"]) / math.sqrt(1 - b2**t) + self.eps
        return w - self.lr * (direction / scale + self.wd * w)


class Adafactor:
    """Explicit rate: no relative step, no parameter scaling, no warm-up initialisation."""

    def __init__(self, w, lr, weight_decay, eps, clip_threshold, decay_rate, dtype=np.float64):
        self.lr, self.wd, self.eps = lr, weight_decay, eps
        self.clip, self.decay, self.dtype = clip_threshold, decay_rate, dtype
        self.state = {"step": np.zeros(1, np.int64)}
        if w.ndim >= 2:
            self.state["row"] = np.zeros(w.shape[:-1], dtype)
            self.state["col"] = np.zeros(w.shape[:-2] + w.shape[-1:], dtype)
        else:
            self.state["exp_avg_sq"] = np.zeros(w.shape, dtype)

    def step(self, w, g):
        w, g, st = w.astype(self.dtype), g.astype(self.dtype), self.state
        st["step"] = st["step"] + 1
        beta = 1 - float(st["step"][0]) ** self.decay
        square = g * g + self.eps
        if w.ndim >= 2:
            st["row"] = beta * st["row"] + (1 - beta) * square.mean(axis=-1)
            st["col"] = beta * st["col"] + (1 - beta) * square.mean(axis=-2)
            rows = st["row"] / st["row"].mean(axis=-1, keepdims=True)
            u = g / np.sqrt(rows)[..., :, None] / np.sqrt(st["col"])[..., None, :]
        else:
            st["exp_avg_sq"] = beta * st["exp_avg_sq"] + (1 - beta) * square
            u = g / np.sqrt(st["exp_avg_sq"])
        rms = float(np.sqrt(np.mean(u * u)))
        u = u / max(1.0, rms / self.clip)
        return w * (1 - self.lr * self.wd) - self.lr * u


class Lion:
    def __init__(self, w, lr, weight_decay, betas, cautious=False, dtype=np.float64):
        self.lr, self.wd, self.betas, self.dtype = lr, weight_decay, betas, dtype
        self.cautious = cautious
        self.state = {"exp_avg": np.zeros(w.shape, dtype)}

    def step(self, w, g):
        w, g, m, (b1, b2) = w.astype(self.dtype), g.astype(self.dtype), self.state, self.betas
        update = np.sign(b1 * m["exp_avg"] + (1 - b1) * g)
        m["exp_avg"] = b2 * m["exp_avg"] + (1 - b2) * g
        return w - self.lr * (update + decay(w, update, self.wd, self.cautious))


class Sgd:
    def __init__(
        self, w, lr, weight_decay, momentum, nesterov=False, maximize=False, dtype=np.float64
    ):
        self.lr, self.wd, self.mu, self.dtype = lr, weight_decay, momentum, dtype
        self.nesterov, self.maximize = nesterov, maximize
        self.state = {"momentum": np.zeros(w.shape, dtype)}

    def step(self, w, g):
        w, g = w.astype(self.dtype), g.astype(self.dtype)
        d = (-g if self.maximize else g) + self.wd * w
        if self.mu == 0:
            return w - self.lr * d
        buffer = self.state["momentum"] = self.mu * self.state["momentum"] + d
        return w - self.lr * (d + self.mu * buffer if self.nesterov else buffer)


class TorchRule:
    """A torch optimizer on one float64 parameter, under the same interface."""

    def __init__(self, w, make, keys):
        self.p = torch.nn.Parameter(torch.tensor(w, dtype=torch.float64))
        self.optimizer = make([self.p])
        self.keys = keys

    @property
    def state(self):
        slots = self.optimizer.state[self.p]
        state = {key: slots[slot].detach().numpy().copy() for key, slot in self.keys.items()}
        if "step" in slots:
            state["step"] = np.array([int(slots["step"])], np.int64)
        return state

    def step(self, w, g):
        with torch.no_grad():
            self.p.copy_(torch.from_numpy(np.asarray(w, np.float64)))
        self.p.grad = torch.tensor(g, dtype=torch.float64)
        self.optimizer.step()
        return self.p.detach().numpy().copy()


def torch_adamw(w, lr, weight_decay, betas, eps, maximize=False):
    make = lambda p: torch.optim.AdamW(p, lr, betas, eps, weight_decay, maximize=maximize)
    return TorchRule(w, make, {"exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq"})


def torch_sgd(w, lr, weight_decay, momentum, nesterov=False, maximize=False):
    make = lambda p: torch.optim.SGD(
        p, lr, momentum, weight_decay=weight_decay, nesterov=nesterov, maximize=maximize
    )
    keys = {"momentum": "momentum_buffer"} if momentum else {}
    return TorchRule(w, make, keys)
