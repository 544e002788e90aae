# SPDX-License-Identifier: Apache-2.0
"""Weights and gradients that the trajectory tests step, drawn from printed seeds."""

from dataclasses import dataclass, field

import numpy as np

# Gradients of one trajectory share a common part, so that momentum matters.
COMMON, FRESH = 0.7, 0.7


@dataclass
class Problem:
    weight: np.ndarray
    grads: list
    seed: int
    state: dict = field(default_factory=dict)

    @property
    def steps(self):
        return len(self.grads)


def parse_shape(text):
    return tuple(int(extent) for extent in text.split("x"))


def gaussian(rng, shape):
    return rng.standard_normal(shape)


def _with_spectrum(rng, shape, values):
    """Random singular vectors around a given spectrum, entries of mean square one."""
    rows, cols = shape[0], int(np.prod(shape[1:]))
    k = min(rows, cols)
    left = np.linalg.qr(rng.standard_normal((rows, k)))[0]
    right = np.linalg.qr(rng.standard_normal((cols, k)))[0]
    x = (left * values(k)) @ right.T
    return (x * np.sqrt(x.size) / np.linalg.norm(x)).reshape(shape)


def harmonic(rng, shape):
    """Singular values 1, 1/2, 1/3, ...: typical of momentum in training."""
    return _with_spectrum(rng, shape, lambda k: 1.0 / np.arange(1, k + 1))


def spaced(rng, shape):
    """Evenly spaced squared singular values: eigenvectors of its Gram are well posed."""
    return _with_spectrum(rng, shape, lambda k: np.sqrt(np.arange(1, k + 1) / k))


SPECTRA = {"gaussian": gaussian, "harmonic": harmonic, "spaced": spaced}


def problem(
    shape, steps=1, seed=1, spectrum="gaussian", weight_scale=0.02, grad_scale=0.05, common=COMMON
):
    """fp32 weights like an initialisation, and `steps` correlated fp32 gradients."""
    rng = np.random.default_rng([seed, *shape, sum(map(ord, spectrum))])
    draw = SPECTRA[spectrum] if len(shape) > 1 else gaussian
    weight = weight_scale * rng.standard_normal(shape)
    shared = draw(rng, shape)
    grads = [grad_scale * (common * shared + FRESH * draw(rng, shape)) for _ in range(steps)]
    return Problem(weight.astype(np.float32), [g.astype(np.float32) for g in grads], seed)


def aligned(shape, steps=1, seed=1, fresh=1.0):
    """Low-rank correlation between weight and momentum.

    On 768x256, reprojecting after every iteration, as published, pushes a singular value
    past the quintic's unstable fixed point; on small shapes it only disturbs it.
    """
    rng = np.random.default_rng([seed, *shape])
    u = rng.standard_normal((shape[0], 1)) @ rng.standard_normal((1, shape[1]))
    noise = rng.standard_normal(shape)
    weight = 3.0 * u + noise
    weight *= 0.02 * np.sqrt(weight.size) / np.linalg.norm(weight)
    grads = []
    for _ in range(steps):
        g = u / np.linalg.norm(u) - noise / np.linalg.norm(noise)
        g = g + fresh * rng.standard_normal(shape) / np.sqrt(noise.size)
        grads.append(g.astype(np.float32))
    return Problem(weight.astype(np.float32), grads, seed)


def with_soap_state(p):
    """The problem continued from full-rank factors, whose eigenvectors are unique.

    From scratch a rectangular gradient leaves one factor rank-deficient, and any basis of
    its null space would be right.
    """
    rng = np.random.default_rng([p.seed, 77, *p.weight.shape])
    state = {
        "exp_avg": np.zeros(p.weight.shape, np.float32),
        "exp_avg_sq": np.zeros(p.weight.shape, np.float32),
        "step": np.ones(1, np.int64),
    }
    size = float(np.mean(np.square(p.grads[0]))) * p.weight.size
    for i, extent in enumerate(p.weight.shape):
        basis = np.linalg.qr(rng.standard_normal((extent, extent)))[0]
        values = size / extent * np.arange(extent, 0, -1) / extent
        state[f"gram.{i}"] = ((basis * values) @ basis.T).astype(np.float32)
        state[f"basis.{i}"] = basis.astype(np.float32)
    return Problem(p.weight, p.grads, p.seed, state)
