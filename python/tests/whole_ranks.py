# SPDX-License-Identifier: Apache-2.0
"""What the processes of test_wholes.py do: four of them run this file once."""

import os
import sys
import time

import torch
import torch.distributed as dist
from conftest import TinyModel, train

import rode

WORLD, STEPS = 4, 20
KINDS = {
    "RODE": {},
    "RODE-SNR": {"snr": True, "radius": "fixed"},
    "Muon": {"splits": "square=2"},
    "MARSM": {},
    "SOAP": {"precondition_frequency": 3},
    "Adafactor": {},
}
# The matrices of three rows leave a rank of four without any.
FORMS = (("square", (24, 16)), ("short", (3, 10)), ("odd", (13, 7)), ("bias", (6,)))
# Mesh, and dimensions that are sharded (None: replicated), one for each of the mesh's.
LAYOUTS = {
    "fsdp 4": ("four", (0,)),
    "columns 4": ("four", (1,)),
    "replicated": ("four", (None,)),
    "fsdp 2": ("pair", (0,)),
    "tensor parallel 2": ("pair", (1,)),
    "hsdp 2 x 2": ("grid", (None, 0)),
    "fsdp x tensor parallel": ("grid", (0, 1)),
}

CASES = [
    (kind, layout)
    for kind in KINDS
    for layout in LAYOUTS
    if kind in ("RODE", "Muon") or layout in ("fsdp 4", "fsdp x tensor parallel")
]


def values(seed):
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in FORMS}


def groups_of(params):
    """The bias is the rest's."""
    given = list(params.items())
    return [
        {"params": [item for item in given if item[0] == "bias"], "rule": "rest"},
        {"params": [item for item in given if item[0] != "bias"], "rule": "matrix"},
    ]


def make(kind, params, **more):
    options = {**KINDS[kind], **more}
    return getattr(rode, kind.partition("-")[0])(groups_of(params), **options)


def placed(seed, mesh, dims):
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    out = {}
    for name, value in values(seed).items():
        # A vector has no columns.
        placements = [Replicate() if d is None or d >= value.dim() else Shard(d) for d in dims]
        out[name] = distribute_tensor(value, mesh, placements)
    return out


def set_gradients(params, seed, mesh, dims):
    for name, grad in placed(seed, mesh, dims).items():
        # A rank without elements may have no gradient either.
        params[name].grad = grad if grad.to_local().numel() or seed % 2 else None


def whole(params):
    return {name: p.detach().full_tensor().clone() for name, p in params.items()}


class Counted:
    """Collectives that a step issues."""

    def __enter__(self):
        self.calls = 0
        self.kept = {name: getattr(dist, name) for name in ("all_reduce", "all_to_all_single")}
        for name, function in self.kept.items():
            setattr(dist, name, self.counting(function))
        return self

    def counting(self, function):
        def call(*arguments, **more):
            self.calls += 1
            return function(*arguments, **more)

        return call

    def __exit__(self, *_):
        for name, function in self.kept.items():
            setattr(dist, name, function)


def step_layout(kind, layout, meshes):
    mesh, dims = meshes[LAYOUTS[layout][0]], LAYOUTS[layout][1]
    params = {n: torch.nn.Parameter(p) for n, p in placed(1, mesh, dims).items()}
    optimizer = make(kind, params)
    for t in range(STEPS):
        set_gradients(params, 10 + t, mesh, dims)
        with Counted() as counted:
            optimizer.step()
    held = [optimizer.state[p] for name, p in params.items() if name != "bias"]
    saved = optimizer.consolidated_state_dict(to=None)
    state = sum(v.numel() for s in held for v in s.values())
    return {"weights": whole(params), "calls": counted.calls, "state": state, "saved": saved}


def resume(meshes):
    """Saved on four ranks, continued on two."""
    mesh, dims = meshes["four"], (0,)
    params = {n: torch.nn.Parameter(p) for n, p in placed(1, mesh, dims).items()}
    optimizer = make("RODE", params)
    for t in range(STEPS // 2):
        set_gradients(params, 10 + t, mesh, dims)
        optimizer.step()
    saved, weights = optimizer.consolidated_state_dict(to=None), whole(params)
    mesh = meshes["pair"]
    params = {n: torch.nn.Parameter(p) for n, p in placed(1, mesh, dims).items()}
    for name, p in params.items():
        from torch.distributed.tensor import distribute_tensor

        with torch.no_grad():
            p.copy_(distribute_tensor(weights[name], mesh, p.placements))
    optimizer = make("RODE", params)
    optimizer.load_state_dict(saved)
    for t in range(STEPS // 2, STEPS):
        set_gradients(params, 10 + t, mesh, dims)
        optimizer.step()
    return whole(params)


def step_badly(rank, meshes):
    mesh, dims = meshes["four"], (0,)
    params = {n: torch.nn.Parameter(p) for n, p in placed(1, mesh, dims).items()}
    optimizer = make("RODE", params)
    set_gradients(params, 10, mesh, dims)
    optimizer.step()
    before = whole(params)
    set_gradients(params, 11, mesh, dims)
    if rank == 2:
        params["odd"].grad.to_local()[0, 0] = float("nan")
    text, _ = failure(optimizer)
    after = whole(params)
    same = all(torch.equal(before[name], after[name]) for name in before)
    # Found by the engine of its owner alone, when the others step.
    set_gradients(params, 13, mesh, dims)
    if rank == 0:
        params["odd"].detach().to_local()[0, 0] = float("nan")
    out = {"text": text, "same": same, "spoiled": failure(optimizer)}
    for p in params.values():
        p.grad = None
    out["none"] = failure(optimizer)
    try:
        make("RODE", params, lr=2e-3 if rank == 1 else 1e-3)
    except rode.Error as error:
        out["options"] = str(error)
    return out


def place(value, mesh):
    from torch.distributed.tensor import Shard, distribute_tensor

    return torch.nn.Parameter(distribute_tensor(value, mesh, [Shard(0)]))


def load_weights(mesh):
    """Matrices begin at zero until a checkpoint without state is loaded."""
    params = {n: place(torch.zeros_like(v), mesh) for n, v in values(1).items()}
    optimizer = make("RODE", params)
    empty = optimizer.state_dict()
    optimizer.metadata()  # makes an engine
    with torch.no_grad():
        for name, value in placed(1, mesh, (0,)).items():
            params[name].copy_(value)
    optimizer.load_state_dict(empty)
    set_gradients(params, 11, mesh, (0,))
    optimizer.step()
    return whole(params)


def train_lora(mesh=None):
    """What a rank owns must not decide the route: the classifier alone is no LoRA."""
    generator = torch.Generator().manual_seed(7)
    shapes = {"base.lora_A.weight": (24, 16), "classifier.weight": (8, 8)}

    def draw(shape):
        value = torch.randn(shape, generator=generator)
        return torch.nn.Parameter(value) if mesh is None else place(value, mesh)

    params = {name: draw(shape) for name, shape in shapes.items()}
    optimizer = rode.RODE(list(params.items()))
    for _ in range(3):
        for p in params.values():
            p.grad = draw(p.shape).detach()
        optimizer.step()
    return {n: p.detach() for n, p in params.items()} if mesh is None else whole(params)


def consolidate_shards(mesh):
    """Where nothing is stepped as a whole."""
    try:
        rode.AdamW(place(v, mesh) for v in values(1).values()).consolidated_state_dict()
    except rode.Error as error:
        return str(error)
    return ""


def failure(optimizer):
    try:
        optimizer.step()
    except rode.Error as error:
        return str(error), error.changed
    return "", False


def train_model(kind, mesh, fewer, folder):
    """FSDP2, and torch's distributed checkpoint half way, from which another optimizer goes on, on
    fewer ranks."""
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions,
        get_state_dict,
        set_state_dict,
    )
    from torch.distributed.fsdp import fully_shard

    def sharded(mesh):
        torch.manual_seed(4)
        model = TinyModel()
        fully_shard(model.inner, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model, getattr(rode, kind)(model)

    model, optimizer = sharded(mesh)
    train(model, optimizer, 2)
    weights, state = get_state_dict(model, optimizer)
    place = f"{folder}/{kind}"
    checkpoint.save({"model": weights, "optimizer": state}, checkpoint_id=place)
    train(model, optimizer, 2, first=2)
    resumed, other = sharded(fewer)
    weights, state = get_state_dict(resumed, other)
    given = {"model": weights, "optimizer": state}
    checkpoint.load(given, checkpoint_id=place)
    # Not strict: a matrix has state on its owner alone.
    set_state_dict(
        resumed,
        other,
        model_state_dict=given["model"],
        optim_state_dict=given["optimizer"],
        options=StateDictOptions(strict=False),
    )
    train(resumed, other, 2, first=2)
    return {
        "through": whole(dict(model.named_parameters())),
        "resumed": whole(dict(resumed.named_parameters())),
    }


def process(rank, folder):
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=WORLD)
    from torch.distributed.device_mesh import init_device_mesh

    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replica", "shard"))
    meshes = {"four": init_device_mesh("cpu", (WORLD,)), "pair": grid["shard"], "grid": grid}
    results = {
        "layouts": {(k, layout): step_layout(k, layout, meshes) for k, layout in CASES},
        "resume": resume(meshes),
        "bad": step_badly(rank, meshes),
        "loaded": load_weights(meshes["four"]),
        "lora": train_lora(meshes["four"]),
        "shards": consolidate_shards(meshes["four"]),
        "model": {
            kind: train_model(kind, meshes["four"], meshes["pair"], folder)
            for kind in ("RODE", "Muon")
        },
    }
    torch.save(results, f"{folder}/{rank}.part")
    os.rename(f"{folder}/{rank}.part", f"{folder}/{rank}.pt")
    while not all(os.path.exists(f"{folder}/{peer}.pt") for peer in range(WORLD)):
        time.sleep(0.01)
    os._exit(0)  # without gloo's destructors, which may wait for a peer that is gone


if __name__ == "__main__":
    process(int(sys.argv[1]), sys.argv[2])
