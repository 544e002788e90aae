# SPDX-License-Identifier: Apache-2.0
"""Which rule steps which parameter of a module."""

import copy
import re
import warnings

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
    rows = [re.split(r"  +", line) for line in lines[1:] if not line.startswith("route ")]
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


# ---- The route that a model takes by itself ------------------------------------------------


def conv_net():
    return nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.Conv2d(16, 32, 3), nn.Flatten(),
        nn.Linear(32, 10),
    )  # fmt: skip


def test_convolutions_without_an_embedding_make_it_vision():
    optimizer = rode.RODE(conv_net())
    table = reasons(optimizer)
    assert table["0.weight"] == table["2.weight"] == ("matrix", "rank 4")
    assert table["4.weight"] == ("matrix", "rank 2")
    assert table["1.weight"] == ("rest", "rank 1")
    assert "route vision, because it has convolutions and no embedding" in optimizer.routing_table()
    assert copy.deepcopy(optimizer).routing_table() == optimizer.routing_table()


def test_an_embedding_makes_it_language_though_it_has_no_name():
    model = nn.Sequential(nn.Embedding(40, 8), nn.Conv1d(8, 8, 1), nn.Linear(8, 40))
    with pytest.warns(UserWarning, match=r"\[routing\] 100% of the parameters outside"):
        optimizer = rode.RODE(model)  # the convolution's
    table = reasons(optimizer)
    assert table["0.weight"] == ("rest", "Embedding")
    assert table["2.weight"] == ("rest", "head")
    assert "route language, because it has an embedding" in optimizer.routing_table()


def test_layers_alone_are_matrices():
    optimizer = rode.RODE(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)))
    assert {rule for rule, reason in reasons(optimizer).values() if reason == "Linear"} == {
        "matrix"
    }
    assert "neither an embedding nor convolutions" in optimizer.routing_table()


def test_more_than_half_in_the_rest_is_said():
    with pytest.warns(UserWarning, match=r"left to AdamW \(route language\)"):
        rode.RODE(conv_net(), route="language")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rode.RODE(conv_net())
        rode.RODE(TinyModel())  # embedding and head are the larger part, as in every small one
        rode.AdamW(conv_net(), route="language")  # one rule for all


def test_gains_of_weight_norm_are_no_matrices():
    norm = torch.nn.utils.parametrizations.weight_norm
    table = reasons(rode.RODE(nn.Sequential(norm(nn.Linear(8, 16)), norm(nn.Linear(16, 4)))))
    gains = {name: row for name, row in table.items() if name.endswith("original0")}
    assert set(gains.values()) == {("rest", "one column")}
    directions = {row[0] for name, row in table.items() if name.endswith("original1")}
    assert directions == {"matrix"}
    conv = reasons(rode.RODE(nn.Sequential(norm(nn.Conv2d(4, 16, 3)))))
    assert conv["0.parametrizations.weight.original0"] == ("rest", "one column")
    assert conv["0.parametrizations.weight.original1"][0] == "matrix"


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_up = nn.Parameter(torch.randn(4, 8, 16))


def test_weights_of_experts_are_named_as_what_they_are():
    model = nn.Sequential(nn.Linear(64, 64), Experts())
    table = reasons(rode.RODE(model))
    assert table["1.gate_up"] == ("matrix", "batch of matrices")


@pytest.mark.parametrize("kind", ["RODE", "Muon", "SOAP"])
@pytest.mark.parametrize("layout", ["experts_out_in", "experts_in_out"])
def test_a_batch_is_stepped_as_its_matrices(kind, layout):
    batch = nn.Parameter(torch.randn(4, 8, 16))
    alone = [nn.Parameter(m.clone()) for m in batch.detach()]
    a = getattr(rode, kind)([{"params": [("w", batch)], "rule": "matrix", "layout": layout}])
    layout = layout.removeprefix("experts_")
    b = getattr(rode, kind)([{"params": alone, "rule": "matrix", "layout": layout}])
    for _ in range(3):
        batch.grad = torch.randn(4, 8, 16)
        for p, grad in zip(alone, batch.grad, strict=True):
            p.grad = grad.clone()
        a.step()
        b.step()
    assert torch.equal(batch, torch.stack(alone))
    assert all(v.shape[0] == 4 for v in a.state[batch].values())
    restored = getattr(rode, kind)([{"params": [("w", batch)], "rule": "matrix"}])
    restored.load_state_dict(a.state_dict())
    assert restored.param_groups[0]["layout"].startswith("experts_")


def test_experts_of_transformers_are_batches_in_their_layout():
    transformers = pytest.importorskip("transformers")
    small = {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "vocab_size": 40,
    }
    cases = {
        "Qwen3Moe": ({"num_experts": 4, "moe_intermediate_size": 12}, "experts_out_in"),
        "Mixtral": ({"num_local_experts": 4}, "experts_out_in"),
        "GptOss": ({"num_local_experts": 4, "layer_types": ["full_attention"]}, "experts_in_out"),
    }
    for name, (more, layout) in cases.items():
        config = getattr(transformers, f"{name}Config")(**small, **more)
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(config)
        found = {p: group for group in rode.param_groups(model) for p, _ in group["params"]}
        experts = [p for p in found if p.endswith(("gate_up_proj", "down_proj"))]
        assert len(experts) == 2, name
        assert {found[p].get("layout") for p in experts} == {layout}, name
        biases = [p for p in found if p.endswith("_proj_bias")]
        assert all(found[p]["rule"] == "rest" for p in biases), name
        assert name != "GptOss" or len(biases) == 2


def test_llama4_stores_its_experts_transposed():
    pytest.importorskip("transformers")
    from transformers.models.llama4 import Llama4TextConfig
    from transformers.models.llama4.modeling_llama4 import Llama4TextExperts

    config = Llama4TextConfig(hidden_size=16, intermediate_size=12, num_local_experts=4)
    groups = rode.param_groups(nn.Sequential(Llama4TextExperts(config)))
    assert [group["layout"] for group in groups] == ["experts_in_out"]


class Lora(nn.Module):
    """A frozen layer with a low-rank change that begins at zero, as peft's."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.base = nn.Linear(inputs, outputs).requires_grad_(False)
        self.lora_A = nn.Linear(inputs, 4, bias=False)
        self.lora_B = nn.Linear(4, outputs, bias=False)
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, x):
        return self.base(x) + self.lora_B(self.lora_A(x))


def lora_model():
    return nn.Sequential(nn.Embedding(40, 8).requires_grad_(False), Lora(8, 16), nn.LayerNorm(16),
                         Lora(16, 40))  # fmt: skip


def test_lora_has_a_route_and_what_begins_at_zero_learns():
    model = lora_model()
    optimizer = rode.RODE(model, lr_rest=2e-2)
    table = reasons(optimizer)
    assert table["1.lora_A.weight"] == table["3.lora_A.weight"] == ("matrix", "LoRA")
    assert table["1.lora_B.weight"] == table["3.lora_B.weight"] == ("rest", "zero start")
    assert table["2.weight"] == ("rest", "not LoRA's")
    assert not any("base" in name or name.startswith("0.") for name in table)
    assert "route lora, because it has tensors named lora_*" in optimizer.routing_table()
    tokens = torch.arange(40)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(tokens), tokens)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.5
    assert model[1].lora_B.weight.abs().max() > 1e-2
    assert reasons(optimizer) == table  # though it is no longer zero
