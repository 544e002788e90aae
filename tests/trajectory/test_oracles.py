# SPDX-License-Identifier: Apache-2.0
"""The oracles against PyTorch, against each other, and against the paper's properties."""

import math

import numpy as np
import pytest
import torch

import oracles
from compare import BF16_PRODUCTS_TOL, assert_weight, distance, follow, tolerance
from oracles.elementwise import AdamW, Sgd, torch_adamw, torch_sgd
from oracles.matrix import newton_schulz, normalized_rows
from oracles.rode import UNSTABLE
from oracles.soap import Soap
from problems import aligned, problem, with_soap_state

EXACT = 1e-12  # relative, double precision


def run(rule, p):
    w = p.weight.astype(np.float64)
    for g in p.grads:
        w = rule.step(w, g.astype(np.float64))
    return w


def test_plain_adamw_and_sgd_equal_pytorch():
    p = problem((12, 7), 20)
    w = p.weight.astype(np.float64)
    pairs = [
        (AdamW(w, 1e-2, 0.1, (0.9, 0.95), 1e-3), torch_adamw(w, 1e-2, 0.1, (0.9, 0.95), 1e-3)),
        (Sgd(w, 0.1, 5e-2, 0.9), torch_sgd(w, 0.1, 5e-2, 0.9)),
        (Sgd(w, 0.1, 5e-2, 0.9, True, True), torch_sgd(w, 0.1, 5e-2, 0.9, True, True)),
        (
            AdamW(w, 1e-2, 0.1, (0.9, 0.95), 1e-3, True),
            torch_adamw(w, 1e-2, 0.1, (0.9, 0.95), 1e-3, True),
        ),
    ]
    for plain, by_torch in pairs:
        a, b = run(plain, p), run(by_torch, p)
        assert distance(a, b) <= EXACT * np.linalg.norm(b)
        for key, value in by_torch.state.items():
            assert np.allclose(plain.state[key], value, rtol=1e-9, atol=0), key


@pytest.mark.parametrize(
    "optimizer,adjust", [("muon", "original"), ("muon-rms", "match_rms_adamw")]
)
@pytest.mark.parametrize("shape", [(96, 32), (32, 96), (64, 64)])
@pytest.mark.parametrize("spectrum", ["gaussian", "harmonic"])
def test_muon_follows_pytorch_within_bf16(optimizer, adjust, shape, spectrum):
    p = problem(shape, 5, spectrum=spectrum)
    trajectory = follow(optimizer, p, {"weight_decay": 0.1})
    options = oracles.options_of(optimizer)
    weight = torch.nn.Parameter(torch.tensor(p.weight))
    by_torch = torch.optim.Muon([weight], lr=options["lr"], weight_decay=0.1, adjust_lr_fn=adjust)
    for g in p.grads:
        weight.grad = torch.tensor(g)
        by_torch.step()
    assert_weight(weight, trajectory, BF16_PRODUCTS_TOL)


def rode_step(p, **options):
    t = follow("rode", p, options)
    return t, {key: float(value[0]) for key, value in t.rule.diag.items()}


@pytest.mark.parametrize("shape", [(1, 7), (32, 96), (96, 32), (64, 64)])
@pytest.mark.parametrize("direction", ["geodesic", "retraction"])
def test_rode_keeps_the_radius_and_the_displacement_identity(shape, direction):
    p = problem(shape, 1, grad_scale=1.0)
    t, d = rode_step(p, direction=direction, lr=3e-2)
    assert math.isclose(np.linalg.norm(t.weight), d["rho_next"], rel_tol=EXACT)
    moved = distance(t.weight, t.start) ** 2
    angle = d["theta"] if direction == "geodesic" else math.atan(d["theta"])
    expected = (d["rho_next"] - d["rho"]) ** 2 + 2 * d["rho"] * d["rho_next"] * (
        1 - math.cos(angle)
    )
    assert math.isclose(moved, expected, rel_tol=1e-9)


def test_rode_direction_ignores_the_scale_of_gradient_and_weight():
    p = problem((40, 24), 6)
    scaled_g = problem((40, 24), 6)
    scaled_g.grads = [8.0 * g for g in p.grads]  # powers of two: exact in fp32
    scaled_w = problem((40, 24), 6)
    scaled_w.weight = 4.0 * p.weight
    base = follow("rode", p, {"radius": "fixed"})
    unit = lambda w: w / np.linalg.norm(w)
    for other in (scaled_g, scaled_w):
        assert (
            distance(unit(follow("rode", other, {"radius": "fixed"}).weight), unit(base.weight))
            < 1e-10
        )


def test_rode_leaks_exactly_the_rotated_radial_part():
    p = problem((20, 12), 2, grad_scale=1.0)
    options = oracles.options_of("rode", {"lr": 0.05})
    rule = oracles.make("rode", p.weight.astype(np.float64), {"lr": 0.05})
    w0 = p.weight.astype(np.float64)
    w1 = rule.step(w0, p.grads[0].astype(np.float64))
    a, theta = rule.diag["s"][0], rule.diag["theta"][0]
    u0, u1 = w0 / np.linalg.norm(w0), w1 / np.linalg.norm(w1)
    radial = a * u0
    leaked = options["momentum"] * (radial - np.sum(radial * u1) * u1)
    assert math.isclose(
        np.linalg.norm(leaked), abs(options["momentum"] * a * math.sin(theta)), rel_tol=1e-9
    )


def test_reprojecting_every_iteration_diverges_and_the_guard_stops_it():
    p = aligned((768, 256))
    _, every = rode_step(p, reproject="every")
    assert every["q"] > 1e20
    for reproject in ("guarded", "final"):
        _, healthy = rode_step(p, reproject=reproject)
        assert 0 < healthy["q"] / math.sqrt(256) < UNSTABLE


def test_newton_schulz_maps_singular_values_by_its_polynomial():
    for coefficients, low, high in [
        ("jordan", 0.68, 1.13),
        ("you", 0.978, 1.032),
        ("polar_express", 0.86, 1.14),
    ]:
        image = np.array(
            [
                newton_schulz(np.array([[x]]), coefficients, 5)[0, 0]
                for x in np.linspace(0.01, 1, 5000)
            ]
        )
        assert low - 6e-3 < image.min() and image.max() < high + 6e-3, coefficients


def test_splits_and_layout_are_the_same_step_on_pieces_and_transposes():
    p = problem((48, 16), 3)
    w = p.weight.astype(np.float64)
    for optimizer, more in (
        ("rode-snr", {}),
        ("muon", {}),
        ("muon-normproj", {}),
        ("rode", {"normalize": "rows"}),
        ("muon", {"normalize": "rows"}),
    ):
        whole = follow(optimizer, p, {"splits": "w=16+24+8", **more}).weight
        for rows in (slice(0, 16), slice(16, 40), slice(40, 48)):
            part = problem((48, 16), 3)
            part.weight, part.grads = p.weight[rows], [g[rows] for g in p.grads]
            assert distance(whole[rows], follow(optimizer, part, more).weight) < 1e-14
        turned = oracles.make(optimizer, w.T, {"splits": "w=16+24+8", **more}, in_out=True)
        x = w.T
        for g in p.grads:
            x = turned.step(x, g.T.astype(np.float64))
        assert distance(x.T, whole) < 1e-14


def test_normalized_rows_keep_the_norm_and_even_out():
    rng = np.random.default_rng(5)
    rows = np.geomspace(0.01, 1, 6)[:, None]
    averages = np.zeros(6)
    for _ in range(200):
        o = rows * rng.standard_normal((6, 400))
        even = normalized_rows(o, averages, 0.95)
        assert math.isclose(np.linalg.norm(even), np.linalg.norm(o), rel_tol=EXACT)
    sizes = np.linalg.norm(even, axis=1)
    assert sizes.max() < 1.2 * sizes.min()


def test_mars_without_clip_at_gamma_one_minus_beta_is_nesterov_muon():
    p = problem((24, 16), 6, grad_scale=1e-3)
    mars = follow("mars-m", p, {"momentum": 0.95, "gamma": 0.05, "weight_decay": 0.0, "eps": 0.0})
    muon = follow("muon-rms", p, {"lr": 4.097e-3, "eps": 1e-30})
    assert distance(mars.weight, muon.weight) <= 1e-9 * distance(muon.weight, muon.start)


def test_ademamix_without_slow_momentum_is_adamw():
    p = problem((9, 5), 12)
    mix = follow("ademamix", p, {"alpha": 0.0, "betas": (0.9, 0.95, 0.9999), "lr": 1e-2})
    adam = follow("adamw", p, {"betas": (0.9, 0.95), "lr": 1e-2})
    assert distance(mix.weight, adam.weight) <= 1e-9 * distance(adam.weight, adam.start)


def test_soap_with_identity_bases_is_adam_and_bases_stay_orthogonal():
    p = with_soap_state(problem((10, 6), 8))
    for i, extent in enumerate((10, 6)):
        p.state[f"basis.{i}"] = np.eye(extent, dtype=np.float32)
    changed = {"precondition_frequency": 100, "weight_decay": 0.0, "eps": 1e-30}
    soap = follow("soap", p, changed)
    p.state = {}
    adam = follow(
        "adamw", p, {"lr": 2.9e-3, "betas": (0.95, 0.95), "weight_decay": 0.0, "eps": 1e-30}
    )
    assert distance(soap.weight, adam.weight) <= 1e-9 * distance(adam.weight, adam.start)
    turned = follow("soap", problem((6, 5, 3, 3), 20), {"precondition_frequency": 3})
    for i in range(4):
        basis = turned.state[f"basis.{i}"]
        assert distance(basis.T @ basis, np.eye(len(basis))) < 1e-10


def test_adafactor_factors_a_rank_one_square_exactly():
    rng = np.random.default_rng(3)
    p = problem((8, 6), 1)
    p.grads = [np.outer(rng.uniform(1, 2, 8), rng.uniform(1, 2, 6)).astype(np.float32)]
    t = follow("adafactor", p, {"eps": 0.0})
    assert np.allclose(t.start - t.weight, 1e-3, rtol=1e-6)  # u = sign(g), RMS 1


def test_single_precision_meets_the_bound():
    """The oracles in fp32 pass their own bound: the tolerances can be met."""
    for optimizer in oracles.DEFAULTS:
        for steps in (1, 20):
            p = problem((64, 64), steps, seed=3, spectrum="spaced")
            t = follow(optimizer, p)
            rule = oracles.make(optimizer, p.weight, dtype=np.float32)
            w = p.weight
            for g in p.grads:
                w = rule.step(w, g)
            assert_weight(w, t, what=f"{optimizer}, {steps} steps, tol {tolerance(steps)}")
            if isinstance(t.rule, Soap):
                assert t.rule.min_gap > 1e-5
