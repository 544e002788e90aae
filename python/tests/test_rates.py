# SPDX-License-Identifier: Apache-2.0
"""One rate means one rate: what the rest is stepped with where only `lr` is given."""

import re

import pytest
import torch
from conftest import TinyModel

import rode

# Class, default lr, default lr_rest.
MATRIX = [
    (rode.RODE, {}, 5e-2, 2.915e-3),
    (rode.RODE, {"scale": "kernel"}, 1.206e-3, 2.915e-3),
    (rode.RODE, {"snr": True}, 0.2, 2.974e-3),
    (rode.RODE, {"preset": "snr"}, 4.544e-3, 2.974e-3),
    (rode.Muon, {}, 2.257e-2, 2.897e-3),
    (rode.Muon, {"scale": "rms"}, 5.160e-3, 2.913e-3),
    (rode.SOAP, {}, 2.900e-3, 2.591e-3),
    (rode.MARSM, {}, 4.097e-3, 2.693e-3),
    (rode.Muown, {}, 1e-3, 1e-3),
]
ONE_RULE = [rode.AdamW, rode.SGD, rode.AdEMAMix, rode.Adafactor, rode.Lion]


def shown(optimizer):
    """Name -> (rule, lr, weight_decay) of the table."""
    lines = optimizer.routing_table().splitlines()[1:]
    rows = [re.split(r"  +", line) for line in lines if not line.startswith("route ")]
    return {name: (rule, float(lr), decay) for name, _, rule, lr, decay, _ in rows}


@pytest.mark.parametrize(("kind", "options", "lr", "rest"), MATRIX)
def test_matrix_optimizers_scale_the_rate_of_the_rest(kind, options, lr, rest):
    model = TinyModel()
    for given in (None, 1e-5, lr / 64, 0.0):
        optimizer = kind(model, given, **options)
        expected = rest if given is None else rest * given / lr
        assert optimizer.param_groups[1]["lr"] == pytest.approx(expected, rel=1e-12)
        table = shown(optimizer)
        own = lr if given is None else given
        assert table["inner.weight"][:2] == ("matrix", pytest.approx(own, rel=1e-3))
        for name in ("embed.weight", "head.weight", "norm.weight"):
            assert table[name][:2] == ("rest", pytest.approx(expected, rel=1e-3))
    assert kind(model, 1e-5, lr_rest=0.5, **options).param_groups[1]["lr"] == 0.5


@pytest.mark.parametrize("kind", ONE_RULE)
def test_one_rule_has_one_rate_and_one_decay(kind):
    matrices, rest = kind(TinyModel(), lr=1e-5, weight_decay=0.25).param_groups
    assert (matrices["lr"], rest["lr"]) == (1e-5, 1e-5)
    assert (matrices["weight_decay"], rest["weight_decay"]) == (0.25, 0.25)
    _, rest = kind(TinyModel(), 1e-5, lr_rest=0.5, weight_decay_rest=0.125).param_groups
    assert (rest["lr"], rest["weight_decay"]) == (0.5, 0.125)


def stepped(make, lr=None, after=None, **options):
    """Weights of a vector and a matrix after two steps, the second with `after` in the group."""
    torch.manual_seed(3)
    params = [torch.nn.Parameter(torch.randn(6)), torch.nn.Parameter(torch.randn(6, 5))]
    optimizer = make(params, lr, **options)
    for t in range(2):
        for p in params:
            p.grad = torch.randn_like(p)
        if t == 1:
            optimizer.param_groups[0].update(after or {})
        optimizer.step()
    return [p.detach() for p in params], optimizer


@pytest.mark.parametrize(("kind", "options", "lr", "rest"), MATRIX)
def test_the_same_holds_in_groups_of_tensors_and_where_lr_changes(kind, options, lr, rest):
    follows, optimizer = stepped(kind, lr / 8, {"lr": lr / 16}, **options)
    assert optimizer.param_groups[0]["lr_rest"] is None
    given, _ = stepped(kind, lr / 8, {"lr": lr / 16}, lr_rest=rest / 8, **options)
    assert all(map(torch.equal, follows, given))
    other, _ = stepped(kind, lr / 8, **options)
    assert not any(map(torch.equal, follows, other))
    own = kind([{"params": [torch.nn.Parameter(torch.randn(6))], "lr": lr / 8}], lr, **options)
    assert shown(own)["param.0"][:2] == ("rest", pytest.approx(rest / 8, rel=1e-3))
    own.param_groups[0]["lr"] = lr / 16
    assert shown(own)["param.0"][1] == pytest.approx(rest / 16, rel=1e-3)
    set_rest = kind([torch.nn.Parameter(torch.randn(6))], lr, lr_rest=0.5, **options)
    set_rest.param_groups[0]["lr"] = lr / 2
    assert shown(set_rest)["param.0"][1] == pytest.approx(0.25)


def test_no_rate_moves_nothing_of_the_rest():
    model = TinyModel()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = rode.RODE(model, lr=0.0, lr_rho=0.0)
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    optimizer.step()
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.detach(), before[name], rtol=1e-6, atol=1e-7)


def test_a_tensor_as_lr_is_one_object_for_all_of_one_rule():
    lr = torch.tensor(0.5)
    optimizer = rode.AdamW(TinyModel(), lr=lr)
    assert all(group["lr"] is lr for group in optimizer.param_groups)


def test_a_preset_is_the_published_rule_unless_an_option_is_given():
    p = torch.nn.Parameter(torch.randn(4, 4))
    keys = ("scale", "radius", "nesterov", "reproject", "on_zero", "snr", "lr", "lr_rho")

    def options(**given):
        group = rode.RODE([p], **given).param_groups[0]
        return [group[key] for key in keys]

    recipe = ["angle", "adaptive", True, "guarded", "rest", False, 5e-2, 3e-2]
    paper = ["kernel", "learned", False, "every", "hold", False, 1.206e-3, 2.438e-3]
    assert options() == recipe
    assert options(preset="paper") == paper
    assert options(preset="paper", nesterov=True, lr=0.5) == [
        *paper[:2], True, *paper[3:6], 0.5, 2.438e-3
    ]  # fmt: skip
    damped = ["kernel", "learned", False, "guarded", "rest", True, 4.544e-3, 3.698e-5]
    assert options(preset="snr") == damped
    assert options(preset="fixed") == [
        "kernel", "fixed", False, "guarded", "rest", False, 1.206e-3, 0.0
    ]  # fmt: skip
    # An option alone changes itself and the rates that follow it.
    assert options(snr=True) == [*recipe[:5], True, 0.2, 3e-2]
    assert options(radius="fixed") == ["angle", "fixed", *recipe[2:7], 0.0]
    with pytest.raises(rode.Error, match="preset = 'best'; expected snr or fixed or paper"):
        rode.RODE([p], preset="best")
