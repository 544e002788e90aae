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
    with pytest.raises(rode.OptionError, match="on_zero.*rest, start or hold"):
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
        (rode.RODE, {"on_zero": "start"}),
        (rode.RODE, {"on_zero": "start", "snr": True, "state_dtype": "int8"}),
        (rode.RODE, {"on_zero": "start", "radius": "fixed", "normalize": "rows"}),
        (rode.Muown, {}),
    ],
)
@pytest.mark.parametrize("silent", [0, 7])
def test_a_checkpoint_after_five_steps_goes_on_bit_for_bit(way, kind, options, silent):
    params, grads = problem()
    for row in grads[:silent]:  # nothing to start along
        row[0].zero_()
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


def test_start_begins_along_the_gradient_as_long_as_the_others_say():
    params, grads = problem()
    other = torch.nn.Parameter(3 * torch.randn(4, 6))
    size = [float(p.detach().norm()) / p.numel() ** 0.5 for p in (params[1], other)]
    optimizer = rode.RODE([*params, other], on_zero="start", lr=0.02, conditioner="none")
    assert ", zero start" in optimizer.routing_table()
    run(optimizer, [*params, other], [[*grads[0], torch.randn(4, 6)]])
    # Without Newton-Schulz q is 1, and the angle lr / sqrt(8).
    length = 0.02 / 8**0.5 * (sum(size) / 2) * (12 * 8) ** 0.5
    torch.testing.assert_close(params[0].detach(), -length * grads[0][0] / grads[0][0].norm())
    norms = [float(optimizer.state[p]["start_norm"]) for p in (params[0], params[1])]
    assert norms == [pytest.approx((sum(size) / 2) * (12 * 8) ** 0.5), 0]
    assert optimizer.routing_table().count("zero start") == 1


def test_start_is_silent_while_it_waits_and_follows_the_scheduler(recwarn):
    params, grads = problem()
    optimizer = rode.RODE(params, on_zero="start", lr=0.05)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 if step else 1.0)
    run(optimizer, params, [[torch.zeros(12, 8), *grads[0][1:]]])
    assert not params[0].any() and not recwarn
    schedule.step()
    run(optimizer, params, grads[1:2])
    (row,) = [r for r in optimizer.diagnostics()["matrices"].values() if r["rho"] == 0]
    norm = float(optimizer.state[params[0]]["start_norm"])
    assert row["rho_next"] == pytest.approx(float(params[0].detach().norm()), rel=1e-5)
    assert row["rho_next"] == pytest.approx(row["theta"] * norm)
    assert row["theta"] == pytest.approx(0.025 * row["q"] / 8**0.5)


def test_start_is_refused_with_what_it_cannot_have():
    params, _ = problem()
    with pytest.raises(rode.OptionError, match="on_zero.*start.*direction.*fixed"):
        rode.RODE(params, on_zero="start", direction="fixed")
    with pytest.raises(rode.OptionError, match="on_zero.*start.*radius_scope.*rows"):
        rode.RODE(params, on_zero="start", radius_scope="rows", reproject="final")
