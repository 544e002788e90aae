# SPDX-License-Identifier: Apache-2.0
"""What the processes of test_wholes.py do: four of them run this file once."""

import sys

import torch
import torch.distributed as dist
from shared_ranks import end_rank

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
# Of five experts too, which stay on their ranks where they are sharded by expert.
FORMS = (
    ("square", (24, 16)),
    ("short", (3, 10)),
    ("odd", (13, 7)),
    ("experts", (5, 6, 4)),
    ("bias", (6,)),
)
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


def own(value):
    return value.to_local() if hasattr(value, "to_local") else value


def whole(params):
    return {
        name: (p.full_tensor() if hasattr(p, "full_tensor") else p).detach().clone()
        for name, p in params.items()
    }


class Counted:
    """Collectives that a step issues."""

    def __enter__(self):
        self.calls = self.sent = 0
        self.kept = {name: getattr(dist, name) for name in ("all_reduce", "all_to_all_single")}
        for name, function in self.kept.items():
            setattr(dist, name, self.counting(function))
        return self

    def counting(self, function):
        def call(*arguments, **more):
            self.calls += 1
            if function.__name__ == "all_to_all_single":
                given, own = arguments[1], dist.get_rank(more.get("group"))
                sizes = arguments[3]
                self.sent += (sum(sizes) - sizes[own]) * given.element_size()
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
    saved = optimizer.consolidated_state_dict(to=None)
    return {
        "weights": whole(params),
        "calls": counted.calls,
        "sent": counted.sent,
        "placed": {name: is_placed(optimizer, p) for name, p in params.items()},
        "saved": saved,
    }


def is_placed(optimizer, p):
    """Whether all state of the parameter's shape lies as it does, and there is some."""
    entries = [v for v in optimizer.state[p].values() if v.shape == p.shape]
    return bool(entries) and all(
        hasattr(v, "to_local")
        and v.placements == p.placements
        and v.to_local().shape == p.to_local().shape
        for v in entries
    )


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


def edit_state(mesh):
    """A program writes into the state of one rank."""
    params = {n: torch.nn.Parameter(p) for n, p in placed(1, mesh, (0,)).items()}
    optimizer = make("RODE", params)
    for t in range(4):
        if t == 2 and dist.get_rank() == 1:
            optimizer.state[params["square"]]["momentum"].to_local().zero_()
        set_gradients(params, 11 + 2 * t, mesh, (0,))
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


def process(rank, folder):
    import parted_ranks  # which imports this file

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
        "edited": edit_state(meshes["four"]),
        "loaded": load_weights(meshes["four"]),
        "lora": train_lora(meshes["four"]),
        "shards": consolidate_shards(meshes["four"]),
        **parted_ranks.results(rank, meshes, folder),
    }
    end_rank(results, folder, rank, WORLD)


if __name__ == "__main__":
    process(int(sys.argv[1]), sys.argv[2])
