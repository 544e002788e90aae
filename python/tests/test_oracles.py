# SPDX-License-Identifier: Apache-2.0
"""Values beside independent implementations: the oracles of tests/trajectory, double precision,
written from the papers. The bound is theirs: what fp32 products and fp32 weights leave."""

import numpy as np
import pytest
import torch
from compare import assert_weight, follow
from conftest import PUBLISHED
from problems import problem, with_soap_state

import rode

STEPS = 20
# class, the oracle's name, keyword arguments of both
CASES = [
    (rode.RODE, "rode", {}),
    (rode.RODE, "rode", {"snr": True}),
    (rode.RODE, "rode", {"scale": "kernel", "radius": "learned", "nesterov": False}),
    (rode.Muon, "muon", {"weight_decay": 0.1}),
    (rode.Muon, "muon-rms", {"scale": "rms"}),
    (rode.RODE, "rode", {"radius_scope": "rows", "reproject": "final"}),
    (rode.Muown, "muown", {}),
    (rode.MARSM, "mars-m", {}),
    (rode.MARSM, "mars-m", {"gamma": 0.1, "momentum": 0.9, "weight_decay": 0.0}),
    (rode.AdEMAMix, "ademamix", {}),
    (rode.Lion, "lion", {"lr": 1e-2, "betas": (0.7, 0.9), "weight_decay": 0.5}),
    (rode.AdEMAMix, "ademamix", {"lr": 1e-2, "alpha": 5.0, "warmup_steps": 10}),
    (rode.Adafactor, "adafactor", {}),
    (rode.Adafactor, "adafactor", {"clip_threshold": 0.5, "weight_decay": 0.1}),
    (rode.AdamW, "adamw", {"lr": 1e-2, "betas": (0.9, 0.95)}),
    (rode.AdamW, "adamw", {"lr": 1e-2, "betas": (0.9, 0.999), "maximize": True}),
    (rode.AdamW, "adamw", {"lr": 1e-2, "betas": (0.9, 0.95), "cautious_decay": True}),
    (rode.Lion, "lion", {"lr": 1e-2, "weight_decay": 0.5, "cautious_decay": True}),
    # Rounding turns the sign of some elements, and so their decay: a small one.
    (rode.Muon, "muon", {"weight_decay": 0.1, "cautious_decay": True}),
    (rode.MARSM, "mars-m", {"weight_decay": 0.1, "cautious_decay": True}),
    (rode.SGD, "sgd", PUBLISHED[rode.SGD]),
    (rode.SGD, "sgd", {**PUBLISHED[rode.SGD], "nesterov": True, "maximize": True}),
]
ONE_RULE = (rode.AdEMAMix, rode.Adafactor, rode.AdamW, rode.Lion, rode.SGD)
SHAPES = [(32, 48), (48, 32), (7,), (4, 6, 5)]


def step_through(optimizer, p, given):
    for grad in given.grads:
        p.grad = torch.tensor(grad)
        optimizer.step()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("kind", "name", "options"), CASES)
def test_values_are_the_oracles_to_rounding(kind, name, options, shape):
    given = problem(shape, STEPS)
    p = torch.nn.Parameter(torch.tensor(given.weight))
    step_through(kind([p], **options), p, given)
    matrix = kind in ONE_RULE or len(shape) == 2
    assert_weight(p, follow(name, given, options, matrix=matrix))


@pytest.mark.parametrize("options", [{"precondition_frequency": 3}, {"max_precond_dim": 40}])
def test_soap_is_the_oracle_to_rounding(options):
    # Full-rank factors: of others any basis of the null space would be right.
    given = with_soap_state(problem((32, 48), STEPS, spectrum="spaced"))
    if "max_precond_dim" in options:
        given.state = {k: v for k, v in given.state.items() if not k.endswith(".1")}
    p = torch.nn.Parameter(torch.tensor(given.weight))
    optimizer = rode.SOAP([p], **options)
    optimizer.state[p] = {key: torch.tensor(value) for key, value in given.state.items()}
    step_through(optimizer, p, given)
    assert_weight(p, follow("soap", given, options))


@pytest.mark.skipif(not hasattr(torch.optim, "Adafactor"), reason="this torch has no Adafactor")
@pytest.mark.parametrize("shape", SHAPES)
def test_adafactor_is_torchs_at_the_rate_that_torch_makes_of_the_weights(shape):
    """torch scales the rate by the weights' RMS and bounds it; told that rate, ours is the same.
    Its epsilons act on gradients near 0 alone."""
    given = problem(shape, STEPS)
    p, q = (torch.nn.Parameter(torch.tensor(given.weight)) for _ in range(2))
    ours = rode.Adafactor([p], weight_decay=0.0)
    theirs = torch.optim.Adafactor([q], lr=1e-2)
    for t, grad in enumerate(given.grads, start=1):
        size = max(1e-3, float(q.detach().square().mean().sqrt()))
        ours.param_groups[0]["lr"] = size * min(1e-2, t**-0.5)
        p.grad, q.grad = torch.tensor(grad), torch.tensor(grad)
        ours.step()
        theirs.step()
    start = given.weight.astype(np.float64)
    moved = np.linalg.norm(q.detach().double().numpy() - start)
    error = float((p - q).detach().norm())
    # Two trajectories in fp32, each within the bound of compare.py.
    assert error <= 2 * (1e-4 * moved + STEPS * 2**-23 * np.linalg.norm(start))
