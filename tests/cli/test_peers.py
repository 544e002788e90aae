# SPDX-License-Identifier: Apache-2.0
"""The peers that rode's speed is compared to step like the oracles: a wrong one proves nothing."""

import importlib.util

import numpy as np
import pytest
import torch

import oracles
from compare import BF16_PRODUCTS_TOL, assert_weight, distance, follow
from harness import ROOT
from problems import problem

STEPS = 5
SHAPES = [(48, 32), (32, 48), (40, 40)]
# The peer, the optimizer whose defaults it has, what differs, the bound (None: fp32's own).
PEERS = {
    "torch_muon": ("muon-rms", {}, BF16_PRODUCTS_TOL),
    "muon_fp32_loop": ("muon-rms", {}, None),
    "rode_loop": ("rode-paper", {}, None),
}


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location(
        "torch_step", ROOT / "bench" / "peers" / "torch_step.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def stepped(make, matrices, rest):
    """Weights after every gradient of the problems, by one peer."""
    problems = matrices + rest
    weights = [torch.nn.Parameter(torch.tensor(p.weight)) for p in problems]
    optimizer = make(weights[: len(matrices)], weights[len(matrices) :])
    for k in range(STEPS):
        for weight, p in zip(weights, problems):
            weight.grad = torch.tensor(p.grads[k])
        optimizer.step()
    return weights


def test_every_peer_is_compared(script):
    assert set(script.PEERS) == set(PEERS)


@pytest.mark.parametrize("spectrum", ["gaussian", "harmonic"])
@pytest.mark.parametrize("peer", list(PEERS))
def test_peers_step_matrices_like_the_oracle(script, peer, spectrum):
    optimizer, options, tol = PEERS[peer]
    problems = [problem(shape, STEPS, seed, spectrum) for seed, shape in enumerate(SHAPES, 1)]
    for p, weight in zip(problems, stepped(script.PEERS[peer], problems, [])):
        assert_weight(weight, follow(optimizer, p, options), tol, f"{peer} {p.weight.shape}")


@pytest.mark.parametrize("peer", list(PEERS))
def test_peers_step_the_rest_with_adamw(script, peer):
    matrix, bias = problem((12, 8), STEPS, 1), problem((33,), STEPS, 2, weight_scale=1.0)
    weight = stepped(script.PEERS[peer], [matrix], [bias])[1]
    rest = {"lr": 2.9e-3, "weight_decay": 9e-4, "betas": (0.9, 0.95)}
    expected = follow("adamw", bias, rest, matrix=True)
    assert_weight(weight, expected)
    without = follow("adamw", bias, {**rest, "weight_decay": 0.0}, matrix=True)
    assert distance(without.weight, expected.weight) > expected.bound()


def test_filters_are_flattened_and_gradients_drawn(script):
    shapes = [("conv", [6, 5, 3, 3], "matrix"), ("table", [7, 4], "rest"), ("bias", [6], "rest")]
    description = {
        "parameters": [dict(zip(("name", "shape", "treatment"), entry)) for entry in shapes]
    }
    matrices, rest = script.tensors(description, seed=0)
    assert [tuple(w.shape) for w in matrices] == [(6, 45)]
    assert [tuple(w.shape) for w in rest] == [(7, 4), (6,)]
    for w in matrices + rest:
        assert w.grad.shape == w.shape and bool((w.grad != 0).all())
        assert not np.array_equal(w.grad.numpy(), w.detach().numpy())


def test_a_peer_that_diverges_is_refused(script):
    class Diverging:
        def __init__(self, matrices, rest):
            self.matrices = matrices

        def step(self):
            for w in self.matrices:
                w.data.fill_(float("nan"))

    description = {"parameters": [{"name": "w", "shape": [4, 3], "treatment": "matrix"}]}
    with pytest.raises(SystemExit, match="NaN"):
        script.measure(Diverging, description, 0, 1)


def test_the_oracles_know_the_peers_rates(script):
    """The comparison is at the peers' own defaults: they are the engine's."""
    weight = torch.nn.Parameter(torch.ones(3, 2))
    muon, rode = script.MuonLoop([weight], []), script.RodeLoop([weight], [])
    assert (muon.lr, muon.momentum) == tuple(
        oracles.DEFAULTS["muon-rms"][key] for key in ("lr", "momentum")
    )
    assert (rode.lr, rode.lr_rho, rode.momentum) == tuple(
        oracles.DEFAULTS["rode-paper"][key] for key in ("lr", "lr_rho", "momentum")
    )
