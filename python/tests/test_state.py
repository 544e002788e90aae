# SPDX-License-Identifier: Apache-2.0
"""State: checkpoints, copies, and what stays when parameters or groups change."""

import copy
import io
import pickle
import warnings

import pytest
import torch
from conftest import TinyModel, every_kind, same, train
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import rode


@every_kind
def test_checkpoint_continues_bit_for_bit(kind):
    model = TinyModel()
    optimizer = kind(model)
    train(model, optimizer, 5)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    expected = train(model, optimizer, 5, first=5)

    file.seek(0)
    saved = torch.load(file, weights_only=True)
    resumed = TinyModel()
    resumed.load_state_dict(saved["model"])
    other = kind(resumed, lr=123.0)
    other.load_state_dict(saved["optimizer"])
    assert train(resumed, other, 5, first=5) == expected
    assert same(model, resumed)


@every_kind
def test_deepcopy_and_pickle_continue_bit_for_bit(kind):
    model = TinyModel()
    optimizer = kind(model)
    train(model, optimizer, 3)
    copied, copied_optimizer = copy.deepcopy((model, optimizer))
    pickled, pickled_optimizer = pickle.loads(pickle.dumps((model, optimizer)))
    expected = train(model, optimizer, 3, first=3)
    assert train(copied, copied_optimizer, 3, first=3) == expected
    assert train(pickled, pickled_optimizer, 3, first=3) == expected
    assert same(model, copied)
    assert same(model, pickled)


def test_bf16_state_keeps_its_types_through_a_checkpoint():
    def make():
        p = torch.nn.Parameter(torch.ones(8, 8, dtype=torch.bfloat16))
        return p, rode.RODE([p], rounding="exact", lr=0.1)

    p, optimizer = make()
    p.grad = torch.randn(8, 8).bfloat16()
    optimizer.step()
    q, other = make()
    other.load_state_dict(optimizer.state_dict())
    q.data.copy_(p.data)
    assert other.state[q]["momentum"].dtype is torch.float32
    assert other.state[q]["low_bits"].dtype is torch.uint16
    q.grad = p.grad.clone()
    optimizer.step()
    other.step()
    assert torch.equal(p, q)
    assert torch.equal(optimizer.state[p]["low_bits"], other.state[q]["low_bits"])


def test_stochastic_rounding_continues_its_random_stream():
    def make():
        p = torch.nn.Parameter(torch.ones(32, 32, dtype=torch.bfloat16))
        return p, rode.AdamW([p], rounding="stochastic", lr=1e-3)

    grads = [torch.randn(32, 32).bfloat16() for _ in range(4)]
    p, optimizer = make()
    for g in grads[:2]:
        p.grad = g
        optimizer.step()
    q, other = make()
    q.data.copy_(p.data)
    other.load_state_dict(optimizer.state_dict())
    for g in grads[2:]:
        p.grad, q.grad = g, g.clone()
        optimizer.step()
        other.step()
    assert torch.equal(p, q)


def test_state_is_the_memory_the_engine_steps_on():
    p = torch.nn.Parameter(torch.randn(4, 4))
    optimizer = rode.SGD([p], momentum=0.5, weight_decay=0.0, lr=1.0)
    p.grad = torch.ones(4, 4)
    optimizer.step()
    momentum = optimizer.state[p]["momentum"]
    assert torch.equal(momentum, torch.ones(4, 4))
    momentum.zero_()
    before = p.detach().clone()
    optimizer.step()
    torch.testing.assert_close(before - p, torch.ones(4, 4))
    optimizer.state[p]["momentum"] = torch.full((4, 4), 2.0)  # replaced, not written
    before = p.detach().clone()
    optimizer.step()
    torch.testing.assert_close(before - p, torch.full((4, 4), 2.0))


def test_state_of_another_optimizer_is_refused_by_name():
    p, q = (torch.nn.Parameter(torch.randn(4, 4)) for _ in range(2))
    p.grad, q.grad = torch.ones(4, 4), torch.ones(4, 4)
    adamw = rode.AdamW([p])
    adamw.step()
    muon = rode.Muon([q])
    with pytest.raises(rode.Error, match=r"param\.0.*momentum"):
        muon.load_state_dict({**muon.state_dict(), "state": adamw.state_dict()["state"]})
    muon.state[q] = dict(adamw.state[p])  # behind its back
    with pytest.raises(rode.Error, match=r"param\.0.*momentum"):
        muon.step()


def test_parameters_without_gradient_stay_with_their_state():
    a, b = (torch.nn.Parameter(torch.randn(4, 4)) for _ in range(2))
    optimizer = rode.AdamW([a, b])
    a.grad = torch.randn(4, 4)
    before = b.detach().clone()
    optimizer.step()
    assert torch.equal(b, before)
    assert optimizer.state[b]["step"].item() == 0
    b.grad = torch.randn(4, 4)
    a.grad = None
    optimizer.step()
    assert not torch.equal(b, before)
    assert optimizer.state[a]["step"].item() == optimizer.state[b]["step"].item() == 1


def test_a_gradient_that_is_not_finite_changes_nothing():
    model = TinyModel()
    optimizer = rode.RODE(model)
    train(model, optimizer, 2)
    before = copy.deepcopy((model, optimizer.state_dict()))
    model.inner.weight.grad[0, 0] = float("nan")
    with pytest.raises(rode.Error, match=r"inner\.weight"):
        optimizer.step()
    assert same(before[0], model)
    now = optimizer.state_dict()["state"]
    for number, entries in before[1]["state"].items():
        for key, value in entries.items():
            assert torch.equal(value, now[number][key])


def test_weights_that_move_are_followed():
    p = torch.nn.Parameter(torch.randn(4, 4))
    optimizer = rode.SGD([p], lr=1.0, momentum=0.0, weight_decay=0.0)
    p.grad = torch.ones(4, 4)
    optimizer.step()
    old = p.data
    p.data = torch.zeros(4, 4)
    kept = old.clone()
    optimizer.step()
    assert torch.equal(old, kept)
    assert torch.equal(p.detach(), -torch.ones(4, 4))
    p.data = p.data.bfloat16()
    p.grad = torch.ones(4, 4, dtype=torch.bfloat16)
    optimizer.step()
    assert torch.equal(p.detach(), torch.full((4, 4), -2.0, dtype=torch.bfloat16))


@every_kind
def test_groups_added_later_keep_the_state_of_the_others(kind):
    a, b = torch.nn.Parameter(torch.randn(4, 4)), torch.nn.Parameter(torch.randn(4, 4))
    alone = torch.nn.Parameter(a.detach().clone())
    optimizer, reference = kind([a]), kind([alone])
    for t in range(4):
        if t == 2:
            optimizer.add_param_group({"params": [b], "lr": 0.5})
        g = torch.randn(4, 4)
        a.grad, b.grad, alone.grad = g, torch.randn(4, 4), g.clone()
        optimizer.step()
        reference.step()
    assert torch.equal(a, alone)
    assert optimizer.param_groups[1]["lr"] == 0.5


@every_kind
def test_safetensors_continue_bit_for_bit(kind, tmp_path):
    model = TinyModel()
    optimizer = kind(model)
    train(model, optimizer, 4)
    save_file(optimizer.named_state(), tmp_path / "s", optimizer.metadata())
    resumed = copy.deepcopy(model)
    other = kind(resumed)
    with safe_open(tmp_path / "s", "pt") as file:
        other.load_named_state(
            {name: file.get_tensor(name) for name in file.keys()},  # noqa: SIM118
            file.metadata(),
        )
    assert train(resumed, other, 3, first=4) == train(model, optimizer, 3, first=4)
    assert same(model, resumed)


def test_the_command_line_continues_from_saved_state(cli, tmp_path):
    p = torch.nn.Parameter(torch.randn(6, 4))
    optimizer = rode.RODE([("layer.weight", p)])
    g = torch.randn(6, 4)
    for _ in range(2):
        p.grad = g.clone()
        optimizer.step()
    tensors = {"param.layer.weight": p.detach(), "grad.layer.weight": g, **optimizer.named_state()}
    save_file(tensors, tmp_path / "in", optimizer.metadata())
    cli("step", "--optimizer", "rode", "--in", tmp_path / "in", "--out", tmp_path / "out")
    optimizer.step()
    assert torch.equal(load_file(tmp_path / "out")["param.layer.weight"], p.detach())


def test_named_state_that_does_not_belong_changes_nothing():
    p = torch.nn.Parameter(torch.randn(4, 4))
    optimizer = rode.Muon([p])
    saved = optimizer.named_state()
    with pytest.raises(rode.Error, match="absent"):
        optimizer.load_named_state({})
    with pytest.raises(rode.Error, match="not in this optimizer"):
        optimizer.load_named_state({**saved, "state.other.momentum": torch.zeros(1)})
    with pytest.raises(rode.Error, match="expected"):
        optimizer.load_named_state({"state.param.0.momentum": torch.zeros(2, 2)})
    with pytest.raises(rode.Error, match="saved by 'sgd'.*load it into 'sgd'"):
        optimizer.load_named_state(saved, {"rode.optimizer": "sgd"})
    other = {name: torch.ones_like(value) for name, value in saved.items()}
    for steps in ("", "-1", "7x", str(2**63), str(2**80)):
        with pytest.raises(rode.Error, match=f"'rode.step' = '{steps}'; expected a step count"):
            optimizer.load_named_state(other, {"rode.step": steps})
    assert not any(value.any() for value in saved.values())


def test_a_failed_start_leaves_no_state_behind():
    w, b = torch.nn.Parameter(torch.randn(4, 4)), torch.nn.Parameter(torch.randn(4))
    w.grad, b.grad = torch.ones(4, 4), torch.ones(4)
    optimizer = rode.RODE(
        [{"params": [w], "rule": "matrix", "radius": "fixed"}, {"params": [b], "rule": "rest"}]
    )
    optimizer.param_groups[1].update(optimizer.param_groups[0], params=[b])  # behind its back
    with pytest.raises(rode.Error, match="rank"):
        optimizer.step()
    assert not any(optimizer.state.values())
    norm = w.detach().norm()
    optimizer.param_groups[1]["params"].clear()
    optimizer.step()
    torch.testing.assert_close(w.detach().norm(), norm)
    torch.testing.assert_close(optimizer.state[w]["radius"], norm[None])


def test_groups_of_a_foreign_state_dict_get_what_they_lack():
    p = torch.nn.Parameter(torch.randn(4, 4))
    other = torch.optim.AdamW([torch.nn.Parameter(torch.randn(4, 4))], lr=0.5)
    optimizer = rode.AdamW([p])
    saved = other.state_dict()
    optimizer.load_state_dict(saved)
    p.grad = torch.ones(4, 4)
    optimizer.step()
    assert optimizer.param_groups[0]["lr"] == 0.5


@every_kind
def test_options_that_a_state_dict_lacks_stay_as_they_are(kind):
    model = TinyModel()
    groups = rode.param_groups(model, seed=7)
    groups[-1]["seed"] = 8
    optimizer = kind(groups)
    expected = [dict(group) for group in optimizer.param_groups]
    saved = optimizer.state_dict()
    for group in saved["param_groups"]:
        for key in group.keys() - {"params", "param_names", "lr"}:
            del group[key]
    optimizer.load_state_dict(saved)
    assert optimizer.param_groups == expected
    train(model, optimizer, 1)


def test_a_warning_made_an_error_comes_after_the_step():
    p, q = torch.nn.Parameter(torch.zeros(3, 3)), torch.nn.Parameter(torch.ones(3, 3))
    p.grad, q.grad = torch.ones(3, 3), torch.randn(3, 3)
    optimizer = rode.RODE([p, q], on_zero="hold")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="norm zero"):
            optimizer.step()
    assert not torch.equal(q.detach(), torch.ones(3, 3))
    optimizer.step()
