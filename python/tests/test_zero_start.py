# SPDX-License-Identifier: Apache-2.0
"""Matrices that begin at zero: on_zero, and checkpoints that remember it."""

import copy
import io

import pytest
import torch

import rode


def problem():
    torch.manual_seed(11)
    weights = [torch.zeros(12, 8), torch.randn(8, 6), torch.randn(5)]
    grads = [[torch.randn_like(w) for w in weights] for _ in range(10)]
    return [torch.nn.Parameter(w) for w in weights], grads


def run(optimizer, params, grads):
    for row in grads:
        for p, g in zip(params, row, strict=True):
            p.grad = g.clone()
        optimizer.step()


def test_rest_steps_it_as_adamw_and_hold_keeps_it():
    params, grads = problem()
    optimizer = rode.RODE(params, lr_rest=1e-2, weight_decay_rest=0.1)
    run(optimizer, params, grads)
    other, _ = problem()
    run(torch.optim.AdamW(other[:1], lr=1e-2, weight_decay=0.1, betas=(0.9, 0.95)), other[:1],
        [row[:1] for row in grads])  # fmt: skip
    torch.testing.assert_close(params[0], other[0])
    assert set(optimizer.state[params[0]]) == {"exp_avg", "exp_avg_sq", "step"}
    held, _ = problem()
    keeps = rode.RODE(held, on_zero="hold")
    assert "zero start" not in keeps.routing_table()
    with pytest.warns(UserWarning, match="norm zero.*on_zero=rest"):
        run(keeps, held, grads)
    assert not held[0].any()
    with pytest.raises(rode.OptionError, match="on_zero.*rest or hold"):
        rode.RODE(held, on_zero="keep")


def test_a_module_gives_it_the_options_of_the_rest():
    layer = torch.nn.Linear(8, 12, bias=False)
    torch.nn.init.zeros_(layer.weight)
    optimizer = rode.RODE(layer, lr=1e-4, lr_rest=0.25, betas_rest=(0.5, 0.6))
    assert "zero start" in optimizer.routing_table()
    assert optimizer.routing_table().splitlines()[1].split()[4] == "0.25"
    layer.weight.grad = torch.ones(12, 8)
    optimizer.step()
    torch.testing.assert_close(layer.weight.detach(), torch.full((12, 8), -0.25))


@pytest.mark.parametrize("way", ["state_dict", "pickle", "named_state", "deepcopy"])
@pytest.mark.parametrize(
    "kind,options",
    [
        (rode.RODE, {}),
        (rode.RODE, {"snr": True}),
        (rode.RODE, {"radius": "adaptive"}),
        (rode.RODE, {"radius": "fixed"}),
        (rode.Muown, {}),
    ],
)
def test_a_checkpoint_after_five_steps_goes_on_bit_for_bit(way, kind, options):
    params, grads = problem()
    optimizer = kind(params, **options)
    run(optimizer, params, grads[:5])
    assert "zero start" in optimizer.routing_table()
    if way == "deepcopy":
        resumed, again = copy.deepcopy((params, optimizer))
    else:
        resumed = [torch.nn.Parameter(p.detach().clone()) for p in params]
        again = kind(resumed, **options)
        if way == "state_dict":
            file = io.BytesIO()
            torch.save(optimizer.state_dict(), file)
            file.seek(0)
            again.load_state_dict(torch.load(file))
        elif way == "pickle":
            again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        else:
            again.load_named_state(optimizer.named_state(), optimizer.metadata())
    run(optimizer, params, grads[5:])
    run(again, resumed, grads[5:])
    assert all(map(torch.equal, params, resumed))
    for p, q in zip(params, resumed, strict=True):
        assert optimizer.state[p].keys() == again.state[q].keys()
        assert all(torch.equal(v, again.state[q][k]) for k, v in optimizer.state[p].items())
    assert again.routing_table() == optimizer.routing_table()
