# SPDX-License-Identifier: Apache-2.0
"""DTensors in one process: what is refused, and where state may come from."""

import sys
import types

import pytest
import torch
import torch.distributed as dist

import rode

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch without distributed")
ELEMENTWISE = ("AdamW", "SGD", "AdEMAMix", "Lion")


@pytest.fixture
def one_process(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield dist.device_mesh.init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def placed_rows(value, mesh):
    tensor = pytest.importorskip("torch.distributed.tensor")
    return tensor.distribute_tensor(value, mesh, [tensor.Shard(0)])


@pytest.mark.parametrize("kind", ELEMENTWISE)
def test_a_shard_is_refused_at_the_norm_at_which_a_plain_tensor_is(one_process, kind):
    tensor = pytest.importorskip("torch.distributed.tensor")
    refused = []
    for size in (1e18, 1.84e19, 1.85e19, 9e35, 1.1e36, float("inf")):
        for sharded in (False, True):
            p = torch.ones(4, 4)
            p = tensor.distribute_tensor(p, one_process, [tensor.Shard(0)]) if sharded else p
            p = torch.nn.Parameter(p)
            p.grad = torch.zeros_like(p)
            getattr(p.grad, "_local_tensor", p.grad)[1, 1] = size
            try:
                getattr(rode, kind)([p], lr=0.0).step()
                refused.append(False)
            except rode.Error:
                refused.append(True)
    assert refused[::2] == refused[1::2]
    assert refused[0] is False and refused[-1] is True


def test_int8_state_whose_blocks_a_shard_may_cut_is_that_of_the_whole(one_process):
    tensor = pytest.importorskip("torch.distributed.tensor")
    value, grad = torch.randn(4, 300), torch.randn(4, 300)
    plain, p = (torch.nn.Parameter(v) for v in (value.clone(), placed_rows(value, one_process)))
    plain.grad, p.grad = grad, placed_rows(grad, one_process)
    for parameter in (plain, p):
        optimizer = rode.AdamW([("layer.weight", parameter)], state_dtype="int8")
        optimizer.step()
    assert torch.equal(p.full_tensor(), plain) and not torch.equal(plain, value)
    held = optimizer.state[p]["exp_avg"]
    assert held.dtype is torch.int8
    assert isinstance(held, tensor.DTensor) and held.placements == p.placements
    assert not isinstance(optimizer.state[p]["exp_avg_scale"], tensor.DTensor)


GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
KINDS = {
    "guarded": (rode.RODE, {"radius": "learned"}),
    "final": (rode.RODE, {"radius": "learned", "reproject": "final"}),
    "Muon": (rode.Muon, {}),
    "MARS-M": (rode.MARSM, {}),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=GPU)])
def test_matrices_in_parts_step_as_plain_ones_and_skip_bad_gradients(one_process, kind, device):
    mesh = dist.device_mesh.init_device_mesh(device, (1,))
    make, options = KINDS[kind]
    values = [torch.randn(shape, device=device) / 8 for shape in ((66, 130), (90, 70), (64, 64))]
    grads = [[torch.randn_like(v) for v in values] for _ in range(3)]
    grads[1][2][0, 0] = float("nan")
    found = []
    for place in (lambda v: v.clone(), lambda v: placed_rows(v, mesh)):
        params = [torch.nn.Parameter(place(v)) for v in values]
        options = {"lr": 0.02, "ns_dtype": "bf16", "on_non_finite": "skip", **options}
        optimizer = make(params, **options)
        for row in grads:
            for p, grad in zip(params, row, strict=True):
                p.grad = place(grad)
            optimizer.step()
        found.append([getattr(p, "full_tensor", lambda p=p: p)().detach() for p in params])
    for start, plain, parted in zip(values, *found, strict=True):
        moved = torch.linalg.norm(plain - start)
        assert moved > 0 and torch.linalg.norm(parted - plain) <= 0.03 * moved


def test_dtensors_are_found_where_older_releases_keep_them(one_process, monkeypatch):
    from rode import _shards

    tensor = pytest.importorskip("torch.distributed.tensor")
    p = tensor.distribute_tensor(torch.ones(4, 4), one_process, [tensor.Shard(0)])
    # As in PyTorch 2.4: the public package holds tensor parallelism alone.
    monkeypatch.setitem(sys.modules, "torch.distributed.tensor", types.ModuleType("tensor"))
    monkeypatch.delitem(sys.modules, "torch.distributed._tensor", raising=False)
    assert not _shards.is_dtensor(p)
    monkeypatch.setitem(sys.modules, "torch.distributed._tensor", tensor)
    assert _shards.is_dtensor(p) and not _shards.is_dtensor(torch.ones(2))


def test_named_state_is_taken_whole_or_sharded(one_process):
    tensor = pytest.importorskip("torch.distributed.tensor")
    made = []
    for _ in range(2):
        p = tensor.distribute_tensor(torch.ones(4, 4), one_process, [tensor.Shard(0)])
        made.append(torch.nn.Parameter(p))
        made[-1].grad = torch.full_like(made[-1], 2.0)
    first, second = (rode.AdamW([("p", p)]) for p in made)
    first.step()
    saved = first.named_state()
    whole = {k: v.full_tensor() if hasattr(v, "full_tensor") else v for k, v in saved.items()}
    for given in (saved, whole):
        second.load_named_state(given, first.metadata())
        for key, value in second.state[made[1]].items():
            assert torch.equal(value, first.state[made[0]][key]), key


def test_state_that_does_not_fit_is_refused_when_it_is_given(one_process):
    tensor = pytest.importorskip("torch.distributed.tensor")
    p = torch.nn.Parameter(
        tensor.distribute_tensor(torch.ones(4, 4), one_process, [tensor.Shard(0)])
    )
    optimizer = rode.AdamW([("w", p)], lr=0.1)
    state = {"exp_avg": torch.zeros(3, 3), "exp_avg_sq": torch.zeros(4, 4), "step": torch.ones(())}
    with pytest.raises(rode.Error, match=r"'exp_avg' of parameter 'w'"):
        optimizer.load_state_dict(
            {"state": {0: state}, "param_groups": optimizer.state_dict()["param_groups"]}
        )
    assert not optimizer.state


def test_a_plain_parameter_has_its_rules_limit_beside_a_shard(one_process):
    tensor = pytest.importorskip("torch.distributed.tensor")
    whole = torch.nn.Parameter(torch.ones(4))
    p = torch.nn.Parameter(
        tensor.distribute_tensor(torch.ones(4, 4), one_process, [tensor.Shard(0)])
    )
    optimizer = rode.AdamW([("w", p), ("plain", whole)], lr=0.1)
    p.grad = tensor.distribute_tensor(torch.ones(4, 4), one_process, [tensor.Shard(0)])
    whole.grad = torch.full((4,), 5e19)  # its square is beyond fp32
    with pytest.raises(rode.Error, match="nothing was changed on any rank") as refused:
        optimizer.step()
    assert refused.value.kind == "non-finite" and not refused.value.changed


def test_starts_that_need_all_matrices_are_refused_where_processes_divide_them(one_process):
    told = "on_zero' = 'start'.*divided between processes"
    plain = torch.nn.Parameter(torch.randn(8, 6))
    with pytest.raises(rode.Error, match=told):
        rode.RODE([("layer.weight", plain)], on_zero="start", process_group=dist.group.WORLD)
    for name, value in (("layer.weight", torch.randn(8, 6)), ("experts", torch.randn(4, 8, 6))):
        p = torch.nn.Parameter(placed_rows(value, one_process))
        p.grad = torch.ones_like(p)
        with pytest.raises(rode.Error, match=r"(?s)start.*processes|processes.*start"):
            rode.RODE([(name, p)], on_zero="start").step()
        rode.RODE([(name, p)]).step()
