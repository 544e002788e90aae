# SPDX-License-Identifier: Apache-2.0
"""int8 momentum in torch tensors: state dicts, changed options, torch's own checkpoints."""

import copy
import io

import pytest
import torch

import rode

SHAPES = [(6, 600), (8, 256), (300,)]
CLASSES = [rode.RODE, rode.Muon, rode.MARSM, rode.AdamW]
INT8 = {"state_dtype": "int8"}


def make(cls, **options):
    generator = torch.Generator().manual_seed(3)
    params = [
        torch.nn.Parameter(0.02 * torch.randn(shape, generator=generator)) for shape in SHAPES
    ]
    named = [(f"h.{i}.weight", p) for i, p in enumerate(params)]
    return params, cls(named, **options)


def run(params, optimizer, steps, seed=1):
    for t in range(steps):
        generator = torch.Generator().manual_seed(100 * seed + t)
        for p in params:
            p.grad = torch.randn(p.shape, generator=generator)
        optimizer.step()


def key_of(entries):
    return "momentum" if "momentum" in entries else "exp_avg"


def through_file(state_dict):
    file = io.BytesIO()
    torch.save(state_dict, file)
    file.seek(0)
    return torch.load(file)


def assert_equal_state(a, b):
    for p, q in zip(a, b, strict=True):
        assert p.keys() == q.keys()
        for key in p:
            assert p[key].dtype == q[key].dtype and torch.equal(p[key], q[key]), key


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("cls", CLASSES)
def test_continues_bit_for_bit(cls, rounding):
    options = {**INT8, "state_rounding": rounding, "seed": 4}
    params, optimizer = make(cls, **options)
    run(params, optimizer, 3)
    for p in params:
        entries = optimizer.state[p]
        key = key_of(entries)
        assert entries[key].dtype is torch.int8 and entries[key].shape == p.shape
        rows = p.shape[0] if p.dim() > 1 else 1
        blocks = -(-p.numel() // rows // 256)
        assert entries[f"{key}_scale"].shape == (rows, blocks)
    saved = through_file(optimizer.state_dict())
    others, again = make(cls, **options)
    for p, q in zip(params, others, strict=True):
        q.data.copy_(p.data)
    again.load_state_dict(saved)
    run(params, optimizer, 2, seed=2)
    run(others, again, 2, seed=2)
    for p, q in zip(params, others, strict=True):
        assert torch.equal(p, q)
    assert_equal_state([optimizer.state[p] for p in params], [again.state[p] for p in others])


@pytest.mark.parametrize("cls", CLASSES)
def test_a_changed_option_converts_the_state(cls):
    params, optimizer = make(cls)
    run(params, optimizer, 3)
    before = [copy.deepcopy(optimizer.state[p]) for p in params]
    for group in optimizer.param_groups:
        group["state_dtype"] = "int8"
    optimizer.zero_grad()
    optimizer.step()  # of no gradient: nothing is stepped
    for p, old in zip(params, before, strict=True):
        entries = optimizer.state[p]
        key = key_of(entries)
        scales = entries[f"{key}_scale"].repeat_interleave(256, dim=1)
        rows = entries[key].reshape(scales.shape[0], -1)
        wide = (rows.float() * scales[:, : rows.shape[1]]).reshape(p.shape)
        bound = 0.5001 * scales.max()
        assert entries[key].dtype is torch.int8
        assert (wide - old[key]).abs().max() <= bound
    run(params, optimizer, 1, seed=5)
    for group in optimizer.param_groups:
        group["state_dtype"] = "fp32"
    run(params, optimizer, 1, seed=6)
    for p, old in zip(params, before, strict=True):
        assert optimizer.state[p].keys() == old.keys()
        assert optimizer.state[p][key_of(old)].dtype is torch.float32


@pytest.mark.parametrize("source,target", [("fp32", "int8"), ("int8", "fp32"), ("bf16", "int8")])
@pytest.mark.parametrize("cls", CLASSES)
def test_named_state_loads_from_another_storage(cls, source, target):
    params, optimizer = make(cls, state_dtype=source)
    run(params, optimizer, 2)
    saved = {key: value.clone() for key, value in optimizer.named_state().items()}
    others, again = make(cls, state_dtype=target)
    again.load_named_state(saved, optimizer.metadata())
    for q in others:
        entries = again.state[q]
        key = key_of(entries)
        assert (entries[key].dtype is torch.int8) == (target == "int8")
        assert (f"{key}_scale" in entries) == (target == "int8")
        assert entries[key].any()
    del saved[next(name for name in saved if name.endswith(("momentum", "exp_avg")))]
    with pytest.raises(rode.Error, match="absent|not in this optimizer"):
        again.load_named_state(saved)


def test_adamw_exchanges_checkpoints_with_torch():
    params, ours = make(rode.AdamW, **INT8)
    run(params, ours, 3)
    saved = through_file(ours.state_dict())
    twins = [torch.nn.Parameter(p.detach().clone()) for p in params]
    theirs = torch.optim.AdamW([{"params": twins}])
    plain = {"state": saved["state"], "param_groups": theirs.state_dict()["param_groups"]}
    theirs.load_state_dict(plain)
    for p, q in zip(params, twins, strict=True):
        entries = ours.state[p]
        scales = entries["exp_avg_scale"].repeat_interleave(256, dim=1)
        rows = entries["exp_avg"].reshape(scales.shape[0], -1)
        wide = (rows.float() * scales[:, : rows.shape[1]]).reshape(p.shape)
        assert torch.equal(theirs.state[q]["exp_avg"], wide)
    # Back, after a step of torch's: the scales that it carried along are stale.
    run(twins, theirs, 1, seed=3)
    others, back = make(rode.AdamW, **INT8)
    back.load_state_dict(theirs.state_dict())
    for q, p in zip(twins, others, strict=True):
        entries = back.state[p]
        assert entries["exp_avg"].dtype is torch.int8
        assert int(entries["exp_avg"].abs().max()) == 127
        scales = entries["exp_avg_scale"].repeat_interleave(256, dim=1)
        rows = entries["exp_avg"].reshape(scales.shape[0], -1)
        wide = (rows.float() * scales[:, : rows.shape[1]]).reshape(p.shape)
        assert (wide - theirs.state[q]["exp_avg"]).abs().max() <= 0.5001 * scales.max()


@pytest.mark.parametrize("cls", CLASSES)
def test_a_bad_gradient_changes_nothing(cls):
    params, optimizer = make(cls, **INT8)
    run(params, optimizer, 2)
    before = [copy.deepcopy(optimizer.state[p]) for p in params]
    weights = [p.detach().clone() for p in params]
    params[1].grad = torch.full(params[1].shape, float("nan"))
    with pytest.raises(rode.Error, match=r"h\.1\.weight"):
        optimizer.step()
    assert all(torch.equal(p, w) for p, w in zip(params, weights, strict=True))
    assert_equal_state([optimizer.state[p] for p in params], before)


def test_state_that_is_not_finite_is_not_quantized():
    params, optimizer = make(rode.AdamW)
    run(params, optimizer, 1)
    optimizer.state[params[0]]["exp_avg"][0, 0] = float("inf")
    for group in optimizer.param_groups:
        group["state_dtype"] = "int8"
    with pytest.raises(rode.Error, match=r"h\.0\.weight\.exp_avg.*inf"):
        optimizer.step()


def test_the_planned_state_and_its_bytes():
    _, optimizer = make(rode.RODE, **INT8)
    state = optimizer.named_state()
    momentum = state["state.h.0.weight.momentum"]
    assert momentum.dtype is torch.int8 and state["state.h.0.weight.momentum_scale"].shape == (6, 3)
