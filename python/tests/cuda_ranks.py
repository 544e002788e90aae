# SPDX-License-Identifier: Apache-2.0
"""What the processes of test_parallel_cuda.py do: two of them, over gloo, on one GPU."""

import os
import sys

import torch
import torch.distributed as dist
from parallel_ranks import make, outcome
from parted_ranks import LR, PARTED_OPTIONS
from shared_ranks import end_rank
from whole_ranks import groups_of

import rode

WORLD, STEPS = 2, 20
# "cpu" runs the same where there is no GPU, so that what fails on one is known to be its own.
DEVICE = os.environ.get("RODE_TEST_DEVICE", "cuda")

# Of matrices with a side below 64 the products are fp32, of others bf16 where that is the default.
# The tables are long enough to be divided; wide and tall have odd numbers of rows.
FORMS = {
    "table": ((2051, 9), torch.float32),
    "half_table": ((700, 30), torch.bfloat16),
    "fused": ((24, 16), torch.float32),
    "experts": ((5, 10, 6), torch.float32),
    "wide": ((67, 130), torch.float32),
    "tall": ((131, 70), torch.float32),
    "half": ((72, 80), torch.bfloat16),
    "turned": ((8, 14), torch.float32),
    "bias": ((13,), torch.float32),
    "scale": ((), torch.float32),
}
KINDS = ("RODE", "RODE-SNR", "Muon", "MARSM", "SOAP", "AdamW")

# As DTensors: matrices that are stepped as wholes, since their products are fp32; in parts, with
# bf16 products; and, of an element-wise rule, where they are.
WHOLE = ("RODE guarded", "Muon", "MARSM", "SOAP", "AdamW")
PARTED = ("RODE guarded", "RODE final", "RODE snr", "Muon", "MARSM")
RATES = {**LR, "SOAP": 3e-3, "AdamW": 1e-2}
PARTED_STEPS = 5
PLACED_FORMS = {
    "wide": (67, 130),
    "tall": (131, 70),
    "short": (3, 10),
    "odd": (13, 7),
    "experts": (5, 6, 4),
    "bias": (9,),
}
LAYOUTS = {"rows": 0, "columns": 1}


def draw(forms, seed):
    """On the host, so that every process has the same."""
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in forms.items()}


def values(seed):
    drawn = draw({name: shape for name, (shape, _) in FORMS.items()}, seed)
    return {name: value.to(DEVICE, FORMS[name][1]) for name, value in drawn.items()}


# ---- The same parameters on every process, with process_group -----------------------------------


def parameters():
    params = values(1)
    params["turned"] = params["turned"].t().contiguous().t()  # its columns one after the other
    return {name: torch.nn.Parameter(value) for name, value in params.items()}


def train(kind, factor=1.0, **more):
    """Weights after all steps, on the host; `factor`: of the rates."""
    params = parameters()
    optimizer = make(kind, params, **more)
    for group in optimizer.param_groups:
        group["lr"] *= factor
    for t in range(STEPS):
        for name, grad in values(10 + t).items():
            params[name].grad = grad
        optimizer.step()
    optimizer.check()
    return on_host(params)


def train_on_host(group):
    """With a group that has both backends, of which NCCL would refuse two processes on one GPU."""
    params = {name: torch.nn.Parameter(p.detach().cpu()) for name, p in parameters().items()}
    optimizer = make("RODE", params, process_group=group)
    for t in range(3):
        for name, grad in values(10 + t).items():
            params[name].grad = grad.cpu()
        optimizer.step()
    return on_host(params)


def on_host(params):
    return {name: p.detach().cpu() for name, p in params.items()}


def step_badly(rank):
    """One gradient with NaN on one rank; afterwards a step with good ones."""
    params = parameters()
    optimizer = make("RODE", params, process_group=True)
    rows = []
    for bad in (True, False):
        for name, grad in values(10).items():
            params[name].grad = grad
        if bad and rank == 1:
            params["wide"].grad[0, 0] = float("nan")
        rows.append(outcome(optimizer.step, *params.values()))
    return rows


# ---- DTensors -----------------------------------------------------------------------------------


def placed_values(seed, mesh=None, dim=0):
    """Plain tensors, or this rank's parts as DTensors: made from parts, because gloo does not take
    a GPU's tensors in every call with which torch would cut a whole one."""
    drawn = {name: (v / 8).to(DEVICE) for name, v in draw(PLACED_FORMS, seed).items()}
    if mesh is None:
        return drawn
    from torch.distributed.tensor import DTensor, Replicate, Shard

    out = {}
    for name, value in drawn.items():
        cut = dim < value.dim()
        part = value.tensor_split(_ends(value.shape[dim]), dim)[mesh.get_rank()] if cut else value
        placement = [Shard(dim) if cut else Replicate()]
        out[name] = DTensor.from_local(
            part.contiguous(),
            mesh,
            placement,
            run_check=False,
            shape=value.shape,
            stride=value.stride(),
        )
    return out


def _ends(length):
    """Where the parts of all ranks but the last end, as torch cuts: the first ones are longer."""
    each = -(-length // WORLD)
    return [min(length, each * (rank + 1)) for rank in range(WORLD - 1)]


def make_placed(kind, params, products, factor=1.0):
    family, _, variant = kind.partition(" ")
    options = {"lr": factor * RATES[family], **(PARTED_OPTIONS[variant] if variant else {})}
    if family in ("RODE", "Muon", "MARSM"):
        options["ns_dtype"] = products
    return getattr(rode, family)(groups_of(params), **options)


def train_placed(kind, products, mesh=None, dim=0, factor=1.0):
    """This rank's parts after all steps, on the host, or one process's weights."""
    params = {n: torch.nn.Parameter(v) for n, v in placed_values(1, mesh, dim).items()}
    optimizer = make_placed(kind, params, products, factor)
    for t in range(PARTED_STEPS if products == "bf16" else STEPS):
        for name, grad in placed_values(10 + t, mesh, dim).items():
            params[name].grad = grad
        optimizer.step()
    optimizer.check()
    return on_host({name: own(p) for name, p in params.items()})


def own(p):
    return p.to_local() if hasattr(p, "to_local") else p


def step_placed_badly(rank, products, mesh):
    params = {n: torch.nn.Parameter(v) for n, v in placed_values(1, mesh).items()}
    optimizer = make_placed("RODE guarded", params, products)
    rows = []
    for bad in (False, True):
        for name, grad in placed_values(10, mesh).items():
            params[name].grad = grad
        if bad and rank == 1:
            own(params["tall"].grad)[0, 0] = float("nan")
        rows.append(outcome(optimizer.step, *(own(p.detach()) for p in params.values())))
    return rows


def process(rank, folder):
    torch.set_num_threads(1)
    if DEVICE == "cuda":
        torch.cuda.set_device(0)
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=WORLD)
    from torch.distributed.device_mesh import DeviceMesh

    # Not init_device_mesh, which would make a group of NCCL: that takes one process per GPU.
    mesh = DeviceMesh.from_group(dist.group.WORLD, DEVICE)
    both = dist.new_group(backend=f"cpu:gloo,cuda:{'nccl' if DEVICE == 'cuda' else 'gloo'}")
    results = {
        "host": train_on_host(both),
        "steps": {kind: train(kind, process_group=True) for kind in KINDS},
        "bad": step_badly(rank),
        "whole": {
            (kind, layout): train_placed(kind, "fp32", mesh, dim)
            for kind in WHOLE
            for layout, dim in LAYOUTS.items()
        },
        "parted": {
            (kind, layout): train_placed(kind, "bf16", mesh, dim)
            for kind in PARTED
            for layout, dim in LAYOUTS.items()
        },
        "placed bad": {p: step_placed_badly(rank, p, mesh) for p in ("fp32", "bf16")},
    }
    end_rank(results, folder, rank, WORLD)


if __name__ == "__main__":
    process(int(sys.argv[1]), sys.argv[2])
