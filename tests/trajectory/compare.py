# SPDX-License-Identifier: Apache-2.0
"""Oracle trajectories and the agreement bound between them and the engine.

||W' - W'_oracle|| <= tol ||W'_oracle - W|| + steps 2^-23 ||W||: the first term is the
products' precision, the second what storing W in fp32 costs.
"""

from dataclasses import dataclass

import numpy as np

import oracles

FP32_EPS = 2.0**-23
BF16_PRODUCTS_TOL = 4e-2


def tolerance(steps):
    return 1e-5 if steps == 1 else 1e-4


def as_double(tensor):
    """A torch or numpy tensor as float64 (bf16 has no numpy type)."""
    if hasattr(tensor, "detach"):
        return tensor.detach().double().numpy()
    return np.asarray(tensor, np.float64)


def distance(a, b):
    return float(np.linalg.norm((as_double(a) - as_double(b)).ravel()))


@dataclass
class Trajectory:
    start: np.ndarray
    weight: np.ndarray
    rule: object
    steps: int
    last_grad_norm: float

    @property
    def state(self):
        return self.rule.state

    def bound(self, tol=None):
        tol = tolerance(self.steps) if tol is None else tol
        moved = distance(self.weight, self.start)
        return tol * moved + self.steps * FP32_EPS * float(np.linalg.norm(self.start))


def follow(optimizer, p, options=None, **kwargs):
    """The oracle's trajectory on a problem."""
    start = p.weight.astype(np.float64)
    rule = oracles.make(optimizer, start, options, **kwargs)
    for key, value in p.state.items():
        rule.state[key] = np.array(value, np.int64 if key == "step" else np.float64)
    weight = start
    for grad in p.grads:
        weight = rule.step(weight, grad.astype(np.float64))
    last = float(np.linalg.norm(p.grads[-1].astype(np.float64)))
    return Trajectory(start, weight, rule, p.steps, last)


def assert_weight(weight, trajectory, tol=None, what="weight"):
    error, bound = distance(weight, trajectory.weight), trajectory.bound(tol)
    assert error <= bound, f"{what}: error {error:.3e} above bound {bound:.3e}"


def _up_to_sign(basis, expected):
    signs = np.sign(np.sum(basis * expected, axis=0))
    return basis * np.where(signs == 0, 1.0, signs)


def assert_state(output, trajectory, name="w", soap=False, tol=None):
    """State tensors agree relative to their norm, and no key is missing or added."""
    prefix = f"state.{name}."
    found = {key[len(prefix) :] for key in output if key.startswith(prefix)}
    assert found == set(trajectory.state), f"state keys {sorted(found)}"
    tol = tolerance(trajectory.steps) if tol is None else tol
    for key, expected in trajectory.state.items():
        actual = as_double(output[prefix + key])
        assert actual.shape == expected.shape, f"{key}: shape {actual.shape}"
        if key == "step":
            assert np.array_equal(actual, expected), f"{key}: {actual} for {expected}"
            continue
        if soap and key.startswith("basis."):
            actual = _up_to_sign(actual, expected)
        elif soap and key == "exp_avg":
            # The signs of the basis columns are arbitrary, and so are those of the rotated entries.
            actual, expected = np.abs(actual), np.abs(expected)
        size = float(np.linalg.norm(expected.ravel()))
        # The radial signal is a difference of large terms: its error is the gradient's.
        if key == "radius_avg":
            size = trajectory.last_grad_norm
        elif key == "radius_avg_sq":
            size = max(size, trajectory.last_grad_norm * np.sqrt(size))
        error = distance(actual, expected)
        assert error <= tol * size, f"state {key}: error {error:.3e}, norm {size:.3e}"


def assert_diagnostics(output, trajectory, name="w"):
    """RODE's scalars of the last step."""
    rule, tol = trajectory.rule, tolerance(trajectory.steps)
    grad = trajectory.last_grad_norm
    buffer = float(np.linalg.norm(rule.state["momentum"]))
    for key, expected in rule.diag.items():
        actual = float(output[f"diag.{name}.{key}"].reshape(-1)[0])
        want = float(expected[0])
        allowed = tol * abs(want)
        if key == "s":
            allowed = tol * grad
        elif key == "m_norm":
            # May vanish by cancellation against the buffer, as it does for a 1x1 matrix.
            allowed = tol * max(abs(want), buffer)
        elif key in ("q", "theta") and want == 0:
            allowed = FP32_EPS
        assert abs(actual - want) <= allowed, f"diag {key}: {actual!r} for {want!r}"
