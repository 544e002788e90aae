# SPDX-License-Identifier: Apache-2.0
"""More of what the processes of test_wholes.py do: matrices that are stepped in parts, bytes, and
models with their checkpoints."""

import torch
import torch.distributed as dist
from conftest import TinyModel, train
from whole_ranks import (
    KINDS,
    LAYOUTS,
    Counted,
    failure,
    groups_of,
    is_placed,
    own,
    place,
    whole,
)

import rode

# Of a model: its matrices have other names.
IN_PARTS = "RODE-in-parts"
MODEL_KINDS = {
    "RODE": {},
    "RODE-SNR": KINDS["RODE-SNR"],
    "Muon": {},
    "MARSM": {},
    IN_PARTS: {"ns_dtype": "bf16", "radius": "learned", "nesterov": False},
}
# Family and variant. The radius of an adaptive one divides by its own first gradients: rounding
# would show much larger.
PARTED_OPTIONS = {
    "": {},
    "guarded": {"radius": "learned"},
    "final": {"radius": "learned", "reproject": "final"},
    "snr": {"radius": "fixed", "snr": True},
}
SWITCH = {0: "fp32", 2: "bf16", 4: "fp32"}
# Small steps: what bf16 products differ by is then much less than a unit of the weights.
ROUNDED = {"steps": 3, "dtype": torch.bfloat16, "lr": 2e-4}
LR = {"RODE": 0.02, "Muon": 0.02, "MARSM": 0.02}
PARTED = [
    (kind, layout)
    for kind in ("RODE guarded", "RODE final", "RODE snr", "Muon", "MARSM")
    for layout in LAYOUTS
    if kind == "RODE guarded" or layout in ("fsdp 4", "fsdp x tensor parallel")
]


# ---- Bytes ---------------------------------------------------------------------------------------


def count_bytes(mesh, make, dtype=torch.float32):
    """Matrices large enough that rounding messages up does not show."""
    shapes = [(64, 128), (128, 64), (96, 96), (64, 64)] * 4
    params = [place(torch.randn(shape).to(dtype), mesh) for shape in shapes]
    optimizer = make(params)
    for _ in range(2):
        for p in params:
            p.grad = place(torch.randn(p.shape).to(dtype), mesh).detach()
        with Counted() as counted:
            optimizer.step()
    total = torch.tensor([float(counted.sent)])
    dist.all_reduce(total)
    return {
        "sent": total.item(),
        "calls": counted.calls,
        "weights": sum(p.numel() * p.element_size() for p in params),
        "momentum": sum(4 * own(s["momentum"]).numel() for s in optimizer.state.values()),
    }


def count_all_bytes(mesh):
    kinds = {
        "Muon": lambda params: rode.Muon(params, ns_dtype="bf16"),
        "final": lambda params: rode.RODE(params, ns_dtype="bf16", reproject="final"),
        "guarded": lambda params: rode.RODE(params, ns_dtype="bf16"),
    }
    out = {"whole": count_bytes(mesh, rode.Muon)}
    for kind, made in kinds.items():
        for width, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
            out[f"{kind} {width}"] = count_bytes(mesh, made, dtype)
    return out


# ---- Matrices that are stepped in parts ----------------------------------------------------------


def big_values(seed):
    generator = torch.Generator().manual_seed(seed)
    shapes = {
        "wide": (66, 130),
        "tall": (130, 70),
        "filter": (67, 9, 3, 3),
        "short": (14, 9),  # takes fp32 products: stepped as a whole
        "bias": (9,),
    }
    return {name: torch.randn(shape, generator=generator) / 8 for name, shape in shapes.items()}


def step_parted(kind, mesh=None, dims=None, steps=5, dtype=torch.float32, switch=None, **more):
    """One process where there is no mesh; weights, or what step_layout tells. `switch`: by step,
    the type of the products from then on."""
    switch = switch or {}
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    def draw(seed):
        out = {}
        for name, value in big_values(seed).items():
            kept = [None if d is None or d >= value.dim() else d for d in dims or ()]
            placements = [Replicate() if d is None else Shard(d) for d in kept]
            value = value.to(dtype)
            out[name] = value if mesh is None else distribute_tensor(value, mesh, placements)
        return out

    params = {name: torch.nn.Parameter(value) for name, value in draw(1).items()}
    family, _, variant = kind.partition(" ")
    options = {"lr": LR[family], "ns_dtype": "bf16", **PARTED_OPTIONS[variant], **more}
    optimizer = getattr(rode, family)(groups_of(params), **options)
    for t in range(steps):
        for group in optimizer.param_groups if t in switch else ():
            group["ns_dtype"] = switch[t]
        for name, grad in draw(10 + t).items():
            params[name].grad = grad
        with Counted() as counted:
            optimizer.step()
    del params["bias"]
    if mesh is None:
        return {name: p.detach() for name, p in params.items()}
    return {
        "weights": whole(params),
        "calls": counted.calls,
        "placed": {name: is_placed(optimizer, p) for name, p in params.items()},
    }


def step_parted_badly(rank, mesh):
    """What stops every rank before anything has changed: a gradient, then weights."""
    params = {n: place(value, mesh) for n, value in big_values(1).items()}
    optimizer = rode.RODE(groups_of(params), ns_dtype="bf16")
    out = {}
    for what in ("nothing", "gradient", "weights"):
        for name, grad in big_values(11).items():
            params[name].grad = place(grad, mesh).detach()
        if rank == 2 and what == "gradient":
            params["tall"].grad.to_local()[0, 0] = float("nan")
        if rank == 2 and what == "weights":
            params["tall"].detach().to_local()[0, 0] = float("inf")
        held = [*params.values(), *(v for s in optimizer.state.values() for v in s.values())]
        before = [own(v.detach()).clone() for v in held]
        text, changed = failure(optimizer)
        same = all(torch.equal(own(v.detach()), old) for v, old in zip(held, before))
        out[what] = text, changed, same
    return out


# ---- Models and checkpoints ----------------------------------------------------------------------


class WideModel(TinyModel):
    """Its matrices take bf16 products."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(50, 64)
        self.inner = torch.nn.Linear(64, 96)
        self.norm = torch.nn.LayerNorm(96)
        self.outer = torch.nn.Linear(96, 64, bias=False)
        self.head = torch.nn.Linear(64, 50, bias=False)


def made_model(kind):
    torch.manual_seed(4)
    return WideModel() if kind == IN_PARTS else TinyModel()


def made_optimizer(kind, model):
    return getattr(rode, kind.partition("-")[0])(model, **MODEL_KINDS[kind])


def whole_state(model, optimizer):
    """By parameter and key: every rank has state of every parameter."""
    return {
        (name, key): value.full_tensor() if hasattr(value, "full_tensor") else value.clone()
        for name, p in model.named_parameters()
        for key, value in optimizer.state[p].items()
    }


def train_model(kind, mesh, fewer, folder):
    """FSDP2, and torch's distributed checkpoint half way, from which another optimizer goes on, on
    fewer ranks; with torch's own options, which are strict."""
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.fsdp import fully_shard

    def sharded(mesh):
        model = made_model(kind)
        if mesh is not None:
            fully_shard(model.inner, mesh=mesh)
            fully_shard(model, mesh=mesh)
        return model, made_optimizer(kind, model)

    model, optimizer = sharded(mesh)
    train(model, optimizer, 2)
    before = whole_state(model, optimizer)
    weights, state = get_state_dict(model, optimizer)
    place = f"{folder}/{kind}"
    checkpoint.save({"model": weights, "optimizer": state}, checkpoint_id=place)
    train(model, optimizer, 2, first=2)
    out = {"through": whole(dict(model.named_parameters()))}
    for name, mesh in (("again", mesh), ("resumed", fewer), ("alone", None)):
        resumed, other = sharded(mesh)
        weights, state = get_state_dict(resumed, other)  # makes state by a step of zeros
        given = {"model": weights, "optimizer": state}
        checkpoint.load(given, checkpoint_id=place, no_dist=mesh is None)
        set_state_dict(
            resumed, other, model_state_dict=given["model"], optim_state_dict=given["optimizer"]
        )
        after = whole_state(resumed, other)
        out[f"{name} state"] = before.keys() == after.keys() and all(
            torch.equal(value, after[key]) for key, value in before.items()
        )
        train(resumed, other, 2, first=2)
        out[name] = whole(dict(resumed.named_parameters()))
    return out


def results(rank, meshes, folder):
    four = meshes["four"]
    return {
        "bytes": count_all_bytes(four),
        "parted bad": step_parted_badly(rank, four),
        "rounded": step_parted("RODE final", four, (0,), **ROUNDED),
        "switched": step_parted("RODE snr", four, (0,), switch=SWITCH),
        "parted": {
            (kind, layout): [
                step_parted(kind, meshes[LAYOUTS[layout][0]], LAYOUTS[layout][1]) for _ in range(2)
            ]
            for kind, layout in PARTED
        },
        "model": {kind: train_model(kind, four, meshes["pair"], folder) for kind in MODEL_KINDS},
    }
