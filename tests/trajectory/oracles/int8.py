# SPDX-License-Identifier: Apache-2.0
"""Momentum in 8 bits between the steps of any rule, with one scale for 256 neighbours of a row."""

import numpy as np

BLOCK = 256
_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
# Below it a scale would not be a normal fp32 number: the block is zero.
_LEAST = 127 * 2.0**-126


def _mix(x):
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def _random_bits(sequence, index):
    return _mix((sequence + (index + 1) * _GOLDEN) & _MASK) >> 32


def state_sequence(name, seed, step):
    """SplitMix64 from the seed, the parameter's name and the step."""
    state = 0xCBF29CE484222325 ^ ((seed * _GOLDEN) & _MASK)
    for byte in name.encode():
        state = ((state ^ byte) * 0x100000001B3) & _MASK
    state = _mix(state ^ _GOLDEN)
    return _random_bits(state, 2 * step) << 32 | _random_bits(state, 2 * step + 1)


def draws(sequence, shape):
    """Numbers of [0, 1) with 16 bits: four neighbours of a block share a word of the sequence."""
    row, col = np.indices(shape)
    within = col % BLOCK
    index = (row * shape[1] + col - within + within // 4).astype(np.uint64)
    with np.errstate(over="ignore"):
        x = np.uint64(sequence) + (index + np.uint64(1)) * np.uint64(_GOLDEN)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return (x >> (16 * (within % 4)).astype(np.uint64) & np.uint64(0xFFFF)) / 2.0**16


def as_rows(tensor, in_out=False):
    """The stored matrix: a vector is one row."""
    if tensor.ndim < 2:
        return tensor.reshape(1, -1)
    return tensor.reshape(-1, tensor.shape[-1]) if in_out else tensor.reshape(tensor.shape[0], -1)


def quantize(tensor, in_out=False, sequence=None):
    """Whole numbers in the tensor's shape, and the scales by row and block."""
    rows = as_rows(tensor, in_out)
    blocks = -(-rows.shape[1] // BLOCK)
    whole, scales = np.zeros(rows.shape), np.zeros((rows.shape[0], blocks))
    noise = None if sequence is None else draws(sequence, rows.shape)
    for k in range(blocks):
        part = slice(k * BLOCK, (k + 1) * BLOCK)
        most = np.abs(rows[:, part]).max(axis=1)
        scale = scales[:, k] = np.where(most < _LEAST, 0, most / 127)
        scaled = rows[:, part] / np.where(scale == 0, np.inf, scale)[:, None]
        rounded = np.rint(scaled) if noise is None else np.floor(scaled + noise[:, part])
        whole[:, part] = np.clip(rounded, -127, 127)
    return whole.reshape(tensor.shape), scales


def dequantize(whole, scales, in_out=False):
    rows = as_rows(whole, in_out)
    return (rows * np.repeat(scales, BLOCK, axis=1)[:, : rows.shape[1]]).reshape(whole.shape)


class Int8State:
    """A rule whose momentum, or first moment, is rounded after every step."""

    def __init__(self, rule, name, in_out=False, state_rounding="nearest", seed=0):
        self.rule, self.name, self.in_out, self.seed = rule, name, in_out, seed
        self.stochastic = state_rounding == "stochastic"
        self.steps = 0
        self.key = "momentum" if "momentum" in rule.state else "exp_avg"
        self._store()

    @property
    def state(self):
        return self.rule.state

    @property
    def diag(self):
        return self.rule.diag

    def _store(self):
        value = self.state[self.key]
        sequence = state_sequence(self.name, self.seed, self.steps) if self.stochastic else None
        whole, scales = quantize(value, self.in_out, sequence)
        self.state.update({self.key: whole, f"{self.key}_scale": scales})

    def step(self, w, g):
        scales = self.state.pop(f"{self.key}_scale")
        self.state[self.key] = dequantize(self.state[self.key], scales, self.in_out)
        moved = self.rule.step(w, g)
        self._store()
        self.steps += 1
        return moved
