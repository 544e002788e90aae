# SPDX-License-Identifier: Apache-2.0
"""Which rule steps which parameter of a module."""

import copy
import re

import pytest
import torch
from conftest import TinyModel
from torch import nn

import rode


def routed(groups):
    """Name -> rule, or layout for transposed matrices."""
    out = {}
    for group in groups:
        kind = group["rule"] if group.get("layout", "out_in") == "out_in" else "in_out"
        out.update((name, kind) for name, _ in group["params"])
    return out


class Conv1D(nn.Module):
    """As Hugging Face's: y = x W + b, W stored (in, out)."""

    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.nf = nf
        self.weight = nn.Parameter(torch.randn(nx, nf))
        self.bias = nn.Parameter(torch.zeros(nf))


def test_language_leaves_embeddings_and_the_head_to_the_rest():
    assert routed(rode.param_groups(TinyModel())) == {
        "embed.weight": "rest",
        "inner.weight": "matrix",
        "inner.bias": "rest",
        "norm.weight": "rest",
        "norm.bias": "rest",
        "outer.weight": "matrix",
        "head.weight": "rest",
    }


def test_types_decide_and_names_only_where_types_say_nothing():
    model = nn.ModuleDict(
        {
            "tokens": nn.Embedding(40, 8),
            "positions": nn.Embedding(16, 8),
            "output": nn.Linear(8, 16),  # not to the vocabulary, whatever its name
            "attention": nn.MultiheadAttention(8, 2),
            "final": nn.Linear(16, 40),
        }
    )
    model.wte = nn.Parameter(torch.randn(3, 3))
    model.mix = nn.Parameter(torch.randn(3, 3))
    found = routed(rode.param_groups(model))
    assert found["output.weight"] == "matrix"
    assert found["attention.in_proj_weight"] == "matrix"
    assert found["attention.out_proj.weight"] == "matrix"
    assert found["tokens.weight"] == found["positions.weight"] == found["final.weight"] == "rest"
    assert (found["wte"], found["mix"]) == ("rest", "matrix")


def test_tied_weights_are_one_parameter_of_the_rest():
    model = TinyModel()
    model.head.weight = model.embed.weight
    found = routed(rode.param_groups(model))
    assert found["embed.weight"] == "rest"
    assert "head.weight" not in found
    optimizer = rode.RODE(model)
    model(torch.arange(5)).sum().backward()
    optimizer.step()


def test_conv1d_is_transposed_and_takes_the_true_fan_out():
    plain, transposed = nn.Linear(8, 24), Conv1D(24, 8)
    transposed.weight.data.copy_(plain.weight.data.t())
    assert routed(rode.param_groups(transposed)) == {"weight": "in_out", "bias": "rest"}
    a, b = rode.Muon(plain, lr=0.1), rode.Muon(transposed, lr=0.1)
    plain.weight.grad = torch.randn(24, 8)
    transposed.weight.grad = plain.weight.grad.t().contiguous()
    before = plain.weight.detach().clone()
    a.step()
    b.step()
    step = torch.linalg.norm(plain.weight - before)
    difference = torch.linalg.norm(plain.weight - transposed.weight.t())
    assert difference <= 1e-5 * step


@pytest.mark.parametrize(("route", "filters", "embedding"), [
    ("language", "rest", "rest"), ("vision", "matrix", "matrix"), ("all_matrices", "rest", "matrix"),
])  # fmt: skip
def test_presets(route, filters, embedding):
    model = nn.ModuleDict({"conv": nn.Conv2d(3, 8, 3), "table": nn.Embedding(5, 4)})
    found = routed(rode.param_groups(model, route=route))
    assert found["conv.weight"] == filters
    assert found["table.weight"] == embedding
    assert found["conv.bias"] == "rest"


def test_overrides_and_frozen_parameters():
    model = TinyModel()
    model.norm.weight.requires_grad_(False)
    groups = rode.param_groups(
        model, overrides={"outer.*": "rest", "*.bias": "frozen", "head.*": "matrix"}
    )
    assert routed(groups) == {
        "embed.weight": "rest",
        "inner.weight": "matrix",
        "outer.weight": "rest",
        "head.weight": "matrix",
    }
    with pytest.raises(ValueError, match="matches no parameter"):
        rode.param_groups(model, overrides={"nothing.*": "rest"})
    with pytest.raises(ValueError, match="matrices"):
        rode.param_groups(model, overrides={"*": "matrices"})


def test_the_rest_is_a_group_of_its_own_with_its_own_rate():
    optimizer = rode.RODE(TinyModel(), lr=1e-3, lr_rest=5e-3, weight_decay_rest=0.5)
    matrix, rest = optimizer.param_groups
    assert (matrix["rule"], matrix["lr"]) == ("matrix", 1e-3)
    assert (rest["rule"], rest["lr"], rest["weight_decay"]) == ("rest", 5e-3, 0.5)
    assert "lr_rho" not in rest
    assert "lr_rest" not in matrix


def test_the_rest_is_adamw_to_rounding():
    model, other = TinyModel(), TinyModel()
    other.load_state_dict(model.state_dict())
    ours = rode.RODE(model, lr_rest=1e-2, weight_decay_rest=0.1)
    rest = [p for n, p in other.named_parameters() if n not in ("inner.weight", "outer.weight")]
    theirs = torch.optim.AdamW(rest, lr=1e-2, weight_decay=0.1, betas=(0.9, 0.95))
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        p.grad = torch.randn_like(p)
        q.grad = p.grad.clone()
    ours.step()
    theirs.step()
    for (name, p), q in zip(model.named_parameters(), other.parameters(), strict=True):
        if name not in ("inner.weight", "outer.weight"):
            torch.testing.assert_close(p, q)


def test_groups_can_be_edited_before_use():
    model = TinyModel()
    groups = rode.param_groups(model)
    groups[0]["lr"] = 0.5
    optimizer = rode.Muon(groups, lr=0.1)
    rest = 2.897e-3 * (0.1 / 2.257e-2)  # of the optimizer's own lr
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, rest]


def test_a_vector_under_the_matrix_rule_is_refused_by_name():
    p = nn.Parameter(torch.randn(5))
    for kind in (rode.RODE, rode.Muon, rode.MARSM):
        with pytest.raises(rode.Error, match=r"layer\.bias"):
            kind([{"params": [("layer.bias", p)], "rule": "matrix"}])


def reasons(optimizer):
    """Name -> (rule, reason) of the table."""
    lines = optimizer.routing_table().splitlines()
    assert lines[0].split() == ["parameter", "shape", "rule", "lr", "weight_decay", "reason"]
    rows = [re.split(r"  +", line) for line in lines[1:]]
    return {name: (rule, reason) for name, _, rule, _, _, reason in rows}


def test_the_table_names_the_reason_of_every_parameter():
    model = TinyModel()
    model.conv = Conv1D(4, 3)
    model.wte = nn.Parameter(torch.randn(3, 3))
    model.tied = nn.Embedding(4, 3)
    model.tied_out = nn.Linear(3, 4, bias=False)
    model.tied_out.weight = model.tied.weight
    groups = rode.param_groups(model, overrides={"inner.*": "rest", "outer.weight": "matrix"})
    assert reasons(rode.RODE(groups)) == {
        "wte": ("rest", "named 'wte'"),
        "embed.weight": ("rest", "Embedding"),
        "inner.weight": ("rest", "override 'inner.*'"),
        "inner.bias": ("rest", "override 'inner.*'"),
        "norm.weight": ("rest", "rank 1"),
        "norm.bias": ("rest", "rank 1"),
        "outer.weight": ("matrix", "override 'outer.weight'"),
        "head.weight": ("rest", "head"),
        "conv.weight": ("matrix", "Conv1D"),
        "conv.bias": ("rest", "rank 1"),
        "tied.weight": ("rest", "Embedding, tied"),
    }
    assert reasons(rode.RODE(model, route="vision"))["inner.weight"] == ("matrix", "rank 2")


def test_the_table_of_groups_without_a_module():
    p, q = nn.Parameter(torch.randn(3, 3)), nn.Parameter(torch.randn(3))
    assert reasons(rode.RODE([("wte", p), ("bias", q)])) == {
        "wte": ("rest", "named 'wte'"),
        "bias": ("rest", "rank 1"),
    }
    assert reasons(rode.RODE([{"params": [p], "rule": "rest"}, {"params": [q]}])) == {
        "param.0": ("rest", "its group has rule='rest'"),
        "param.1": ("rest", "rank 1"),
    }
    assert reasons(rode.SGD([p]))["param.0"] == ("matrix", "one rule for all")


def test_reasons_are_no_part_of_groups_and_survive_a_copy():
    optimizer = rode.RODE(TinyModel())
    assert all("reasons" not in group for group in optimizer.state_dict()["param_groups"])
    assert copy.deepcopy(optimizer).routing_table() == optimizer.routing_table()
