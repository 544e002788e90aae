# SPDX-License-Identifier: Apache-2.0
"""DTensors: element-wise rules step the shards, and two processes decide as one would."""

import os
import subprocess
import sys
import time

import pytest
import torch
import torch.distributed as dist
from conftest import TinyModel, train

import rode

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch without distributed")
WORLD, TIMEOUT_S, STEPS = 2, 240, 4
ELEMENTWISE = ("AdamW", "SGD", "AdEMAMix", "Lion")
OPTIONS = {"lr": 1e-2, "weight_decay": 1e-2}
# Name, shape, the dimension that is sharded (None: replicated). Of five rows the ranks have three
# and two, of one row one and none.
LAYOUTS = (
    ("uneven", (5, 3), 0),
    ("empty", (1, 4), 0),
    ("columns", (4, 6), 1),
    ("long", (3, 29), 0),
    ("vector", (61,), 0),
    ("replicated", (3, 3), None),
    ("summed", (4, 2), 0),
)


def values(seed):
    """Whole tensors, the same on every rank."""
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape, _ in LAYOUTS}


def tensor_module():
    return pytest.importorskip("torch.distributed.tensor")


def sharded(seed, mesh, requires_grad=False):
    tensor = tensor_module()
    out = {}
    whole = values(seed)
    for name, _, dimension in LAYOUTS:
        placement = tensor.Replicate() if dimension is None else tensor.Shard(dimension)
        out[name] = tensor.distribute_tensor(whole[name], mesh, [placement])
        if requires_grad:
            out[name] = torch.nn.Parameter(out[name])
    return out


def set_gradients(params, seed, mesh):
    tensor = tensor_module()
    for name, grad in sharded(seed, mesh).items():
        params[name].grad = grad
    # A sum over the ranks that no one has made yet: a half of it on each.
    half = values(seed)["summed"] / WORLD
    params["summed"].grad = tensor.DTensor.from_local(half, mesh, [tensor.Partial()])


def whole(params):
    return {name: p.detach().full_tensor().clone() for name, p in params.items()}


def state_of(optimizer, params):
    parts = {}
    for name, p in params.items():
        for key, value in optimizer.state[p].items():
            if key != "step":
                assert value.placements == p.placements and value.device_mesh == p.device_mesh
                assert value.shape == p.shape
                parts[f"{name}.{key}"] = value.full_tensor().clone()
    return parts


def step_layouts(mesh):
    """Weights and state after some steps, and how far torch.optim.AdamW is from them."""
    out = {}
    for kind in (*ELEMENTWISE, "torch"):
        params = sharded(1, mesh, requires_grad=True)
        make = torch.optim.AdamW if kind == "torch" else getattr(rode, kind)
        optimizer = make(list(params.items()), **OPTIONS)
        if kind in ("torch", "AdamW"):
            for group in optimizer.param_groups:
                group["betas"] = (0.9, 0.95)
        for t in range(STEPS):
            set_gradients(params, 10 + t, mesh)
            optimizer.step()
        out[kind] = whole(params)
        if kind != "torch":
            out[f"{kind} state"] = state_of(optimizer, params)
    return out


def snapshot(params, optimizer):
    """What this rank has of weights and state."""
    held = [*params.values(), *(v for s in optimizer.state.values() for v in s.values())]
    return [getattr(v.detach(), "_local_tensor", v.detach()).clone() for v in held]


def outcome(params, optimizer):
    """What a step raises, and whether it has changed anything here."""
    before = snapshot(params, optimizer)
    text, kind = "", ""
    try:
        optimizer.step()
    except rode.Error as error:
        text, kind = str(error), getattr(error, "kind", "")
    same = all(map(torch.equal, before, snapshot(params, optimizer)))
    return {"text": text, "kind": kind, "same": same}


def step_badly(mesh, rank):
    tensor = tensor_module()
    params = sharded(1, mesh, requires_grad=True)
    plain = torch.nn.Parameter(torch.ones(2))
    # On a mesh of its own, which learns of the others' trouble, too.
    grid = dist.device_mesh.init_device_mesh("cpu", (WORLD, 1), mesh_dim_names=("data", "tensor"))
    placements = [tensor.Shard(0), tensor.Replicate()]
    square = torch.nn.Parameter(tensor.distribute_tensor(torch.ones(4, 4), grid, placements))
    optimizer = rode.AdamW([*params.items(), ("square", square), ("plain", plain)])
    set_gradients(params, 10, mesh)
    plain.grad, square.grad = torch.ones(2), torch.ones_like(square)
    params["square"] = square
    optimizer.step()
    out = {}

    set_gradients(params, 11, mesh)
    if rank == 1:
        params["uneven"].grad.to_local()[0, 0] = float("nan")
    out["nan"] = outcome(params, optimizer)
    left = optimizer._bound()._agreement.gradients(skip=True)
    out["left"] = [name for i, name in enumerate(params) if i in left]
    set_gradients(params, 11, mesh)
    if rank == 0:
        params["uneven"].grad.to_local()[0, 0] = 3e19
    out["large"] = outcome(params, optimizer)
    set_gradients(params, 11, mesh)
    if rank == 0:
        plain.grad[0] = float("inf")
    out["plain"] = outcome(params, optimizer)
    plain.grad = torch.ones(2)
    set_gradients(params, 11, mesh)
    if rank == 1:
        params["columns"].grad = None
    out["absent"] = outcome(params, optimizer)
    out["refused"] = optimizer.refused_steps()
    set_gradients(params, 11, mesh)
    if rank == 1:
        params["empty"].grad = None  # there is nothing of it here
    out["fine"] = outcome(params, optimizer)
    for p in [*params.values(), plain]:
        p.grad = None
    out["none"] = outcome(params, optimizer)
    return out


def shard_model(mesh):
    torch.manual_seed(4)
    model = TinyModel()
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    fsdp.fully_shard(model, mesh=mesh)
    return model


def train_sharded(mesh, folder):
    """FSDP2, and a checkpoint half way from which another optimizer continues."""
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    model = shard_model(mesh)
    optimizer = rode.AdamW(model, **OPTIONS)
    train(model, optimizer, 2)
    weights, state = get_state_dict(model, optimizer)
    checkpoint.save({"model": weights, "optimizer": state}, checkpoint_id=f"{folder}/checkpoint")
    train(model, optimizer, 2, first=2)

    resumed = shard_model(mesh)
    other = rode.AdamW(resumed, **OPTIONS)
    weights, state = get_state_dict(resumed, other)
    given = {"model": weights, "optimizer": state}
    checkpoint.load(given, checkpoint_id=f"{folder}/checkpoint")
    set_state_dict(
        resumed, other, model_state_dict=given["model"], optim_state_dict=given["optimizer"]
    )
    train(resumed, other, 2, first=2)
    return {
        "through": whole(dict(model.named_parameters())),
        "resumed": whole(dict(resumed.named_parameters())),
    }


def step_rest(mesh):
    """A matrix optimizer steps shards that are routed to the rest where they are."""
    model = shard_model(mesh)
    groups = rode.param_groups(model, overrides={"*": "rest"})
    train(model, rode.RODE(groups), 2)
    return whole(dict(model.named_parameters()))


def process(rank, folder):
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=WORLD)
    mesh = dist.device_mesh.init_device_mesh("cpu", (WORLD,))
    results = {
        "layouts": step_layouts(mesh),
        "bad": step_badly(mesh, rank),
        "model": train_sharded(mesh, folder),
        "rest": step_rest(mesh),
    }
    torch.save(results, f"{folder}/{rank}.part")
    os.rename(f"{folder}/{rank}.part", f"{folder}/{rank}.pt")
    while not all(os.path.exists(f"{folder}/{peer}.pt") for peer in range(WORLD)):
        time.sleep(0.01)
    # Without gloo's destructors: now and then they wait for a peer that is gone.
    os._exit(0)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What the processes, which run this file, have found."""
    tensor_module()
    folder = tmp_path_factory.mktemp("ranks")
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    running = [
        subprocess.Popen([sys.executable, __file__, str(rank), str(folder)], env=environment)
        for rank in range(WORLD)
    ]
    try:
        assert [p.wait(timeout=TIMEOUT_S) for p in running] == [0] * WORLD
    finally:
        for p in running:
            p.kill()
    return [torch.load(folder / f"{rank}.pt") for rank in range(WORLD)]


@pytest.mark.parametrize("kind", ELEMENTWISE)
def test_shards_are_stepped_as_one_process_steps_the_whole(ranks, kind):
    params = {name: torch.nn.Parameter(value) for name, value in values(1).items()}
    optimizer = getattr(rode, kind)(list(params.items()), **OPTIONS)
    if kind == "AdamW":
        optimizer.param_groups[0]["betas"] = (0.9, 0.95)
    for t in range(STEPS):
        for name, grad in values(10 + t).items():
            params[name].grad = grad
        optimizer.step()
    for name, p in params.items():
        assert torch.equal(p, ranks[0]["layouts"][kind][name]), name
        for key, value in optimizer.state[p].items():
            if key != "step":
                found = ranks[1]["layouts"][f"{kind} state"][f"{name}.{key}"]
                assert torch.equal(value, found), (name, key)


def test_shards_are_stepped_as_torch_steps_them(ranks):
    start, found = values(1), ranks[0]["layouts"]
    for name, value in found["AdamW"].items():
        way = torch.linalg.norm(value - start[name])
        assert way > 0.01  # or the bound would be none
        assert torch.linalg.norm(value - found["torch"][name]) <= 1e-4 * way, name


@pytest.mark.parametrize(
    ("case", "kind", "text"),
    [
        ("nan", "non-finite", "gradient of 'uneven' holds NaN or Inf"),
        ("large", "non-finite", "gradient of 'uneven' has norm 3e+19, too large"),
        (
            "absent",
            "missing gradient",
            "gradient of 'columns' is present on 1 ranks and absent on 1",
        ),
    ],
)
def test_what_one_rank_cannot_step_no_rank_steps(ranks, case, kind, text):
    first, second = (found["bad"][case] for found in ranks)
    assert first == second
    assert first["same"] and first["kind"] == kind
    assert text in first["text"]


def test_what_is_skipped_is_skipped_on_every_rank(ranks):
    names = [name for name, _, _ in LAYOUTS if name != "uneven"]
    assert [found["bad"]["left"] for found in ranks] == [[*names, "square"]] * WORLD


def test_a_plain_parameter_of_one_rank_stops_the_others(ranks):
    first, second = (found["bad"]["plain"] for found in ranks)
    assert "'plain' holds NaN or Inf" in first["text"]
    assert "of another rank" in second["text"]
    assert first["same"] and second["same"]


def test_ranks_without_elements_or_without_any_gradient_step_along(ranks):
    for found in ranks:
        assert found["bad"]["refused"] == 4
        assert found["bad"]["fine"]["text"] == "" and not found["bad"]["fine"]["same"]
        assert found["bad"]["none"] == {"text": "", "kind": "", "same": True}


def test_a_matrix_optimizer_steps_shards_of_the_rest(ranks):
    torch.manual_seed(4)
    model = TinyModel()
    train(model, rode.RODE(rode.param_groups(model, overrides={"*": "rest"})), 2)
    for name, alone in model.named_parameters():
        assert torch.equal(alone, ranks[0]["rest"][name]), name


if __name__ == "__main__":
    process(int(sys.argv[1]), sys.argv[2])


def test_fsdp2_trains_as_one_process_and_resumes_from_a_distributed_checkpoint(ranks):
    torch.manual_seed(4)
    model = TinyModel()
    train(model, rode.AdamW(model, **OPTIONS), 4)
    for name, alone in model.named_parameters():
        for found in ranks:
            assert torch.equal(alone, found["model"]["through"][name]), name
            assert torch.equal(alone, found["model"]["resumed"][name]), name
