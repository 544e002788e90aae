# SPDX-License-Identifier: Apache-2.0
"""What the processes of test_parallel.py do: four of them run this file once, and groups of two and
of one are made of them."""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from conftest import TinyModel

import rode
from rode import _engine, _share

WORLD, STEPS = 4, 20
SIZES = (1, 2, 4)
KINDS = {
    "RODE": {"lr_rest": 1e-2},
    "RODE-SNR": {"snr": True},
    "Muon": {"splits": "fused=3"},
    "MARSM": {},
    "SOAP": {"precondition_frequency": 3},
    "AdamW": {"lr": 1e-2},
    "Adafactor": {},
    "SGD": {"momentum": 0.9},
}
# Name, shape, type. The tables are long enough to be divided, and not by the unit of division; the
# experts are divided too.
FORMS = (
    ("table", (2051, 9), torch.float32),
    ("half_table", (700, 30), torch.bfloat16),
    ("fused", (24, 16), torch.float32),
    ("experts", (5, 10, 6), torch.float32),
    ("idle_experts", (4, 6, 5), torch.float32),  # begin at zero: the rest's
    ("half_experts", (4, 6, 5), torch.float32),  # one of two begins at zero: those are held
    ("wide", (5, 31), torch.float32),
    ("half", (12, 12), torch.bfloat16),
    ("turned", (8, 14), torch.float32),
    ("none", (0, 3), torch.float32),
    ("bias", (13,), torch.float32),
    ("scale", (), torch.float32),
)


def values(seed):
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator).to(t) for name, shape, t in FORMS}


def parameters():
    params = {}
    for name, value in values(1).items():
        # Stored with its columns one after the other.
        value = value.t().contiguous().t() if name == "turned" else value
        if name.endswith("_experts"):
            value[:: 1 if name == "idle_experts" else 2] = 0
        params[name] = torch.nn.Parameter(value)
    return params


def set_gradients(params, seed):
    for name, grad in values(seed).items():
        if name in params:
            params[name].grad = grad


def make(kind, params, **more):
    rest = ("table", "half_table", "bias", "scale", "none")
    given = list(params.items())
    matrices = {"params": [item for item in given if item[0] not in rest], "rule": "matrix"}
    others = {"params": [item for item in given if item[0] in rest], "rule": "rest"}
    options = dict(KINDS[kind])
    groups = [others, matrices]
    return getattr(rode, kind.partition("-")[0])(groups, **{**options, **more})


def train(params, optimizer, first, last):
    for t in range(first, last):
        set_gradients(params, 10 + t)
        for group in optimizer.param_groups:  # a schedule
            group["lr"] = group["lr"] * 0.97
        optimizer.step()


def weights(params):
    return {name: p.detach().clone() for name, p in params.items()}


def outcome(act, *held):
    """What it raises, and whether it has changed anything here."""
    before = [value.detach().clone() for value in held]
    text, kind, changed = "", "", False
    try:
        act()
    except rode.Error as error:
        text, kind, changed = str(error), error.kind, error.changed
    same = all(map(torch.equal, before, held))
    return {"text": text, "kind": kind, "same": same, "changed": changed}


# ---- What the processes do ------------------------------------------------------------------


def step_all(kind, size, group):
    params = parameters()
    long = _share._SHORT_MESSAGE
    if size == 2:  # three messages, which cut pieces
        _share._SHORT_MESSAGE = 4000
    optimizer = make(kind, params, process_group=group)
    _share._SHORT_MESSAGE = long
    ranks = optimizer._share.ranks
    train(params, optimizer, 0, 1)
    calls, sent = ranks.calls, ranks.bytes
    train(params, optimizer, 1, STEPS)
    state = sum(v.numel() * v.element_size() for s in optimizer.state.values() for v in s.values())
    return {
        "weights": weights(params),
        "calls": (ranks.calls - calls) / (STEPS - 1),
        "bytes": (ranks.bytes - sent) / (STEPS - 1),
        "planned": optimizer._share.plan.message_bytes,
        "state": state,
        "own": len(optimizer._share.own),
        "steps": optimizer.state_dict()["param_groups"][0]["steps_done"],
    }


def resume(kind, groups, folder, rank):
    """Saved half way on four ranks; continued on four, on two and on one."""
    params = parameters()
    optimizer = make(kind, params, process_group=True)
    train(params, optimizer, 0, STEPS // 2)
    whole = optimizer.consolidated_state_dict()
    assert (whole is None) == (rank != 0)
    path = f"{folder}/{kind}.state"
    if rank == 0:
        torch.save({"state": whole, "weights": weights(params)}, path)
    dist.barrier()
    saved = torch.load(path)
    share = optimizer.state_dict()
    out = {"saved": saved["state"]}
    for size in (*SIZES, "share"):
        params = parameters()
        for name, p in params.items():
            p.data.copy_(saved["weights"][name])
        optimizer = make(kind, params, process_group=groups[4 if size == "share" else size])
        optimizer.load_state_dict(share if size == "share" else saved["state"])
        if size == 2:
            out["foreign"] = outcome(lambda: optimizer.load_state_dict(share))
        train(params, optimizer, STEPS // 2, STEPS)
        out[size] = weights(params)
    return out


def step_badly(rank):
    params = parameters()
    optimizer = make("RODE", params, process_group=True)
    train(params, optimizer, 0, 1)
    held = [*params.values(), *(v for s in optimizer.state.values() for v in s.values())]
    out = {}

    def bad(name, act):
        set_gradients(params, 11)
        if act is not None:
            act()
        out[name] = outcome(optimizer.step, *held)

    def on(which, act):
        return act if rank == which else None

    bad("nan", on(1, lambda: params["wide"].grad.view(-1)[3].fill_(float("nan"))))
    bad("large", on(2, lambda: params["bias"].grad.fill_(3e19)))
    bad("absent", on(3, lambda: setattr(params["bias"], "grad", None)))
    bad("shape", on(0, lambda: setattr(params["bias"], "grad", torch.ones(13).to_sparse())))

    rate = optimizer.param_groups[0]["lr"]
    optimizer.param_groups[0]["lr"] = rate * (2 if rank == 2 else 1)
    bad("rate", None)
    optimizer.param_groups[0]["lr"] = rate
    out["refused"] = optimizer.refused_steps()
    bad("fine", None)
    for p in params.values():
        p.grad = None
    out["none"] = outcome(optimizer.step, *held)
    # Found by the engine of its owner alone, when the others step.
    params["wide"].data[0, 0] = float("nan")
    set_gradients(params, 12)
    out["spoiled"] = outcome(optimizer.step)
    return out


def start_at_zero():
    """A matrix of zeros is the rest's, whose squares hold less than a matrix's with this radius."""
    names = ("zero", "other")
    params = {n: torch.nn.Parameter(torch.full((8, 6), float(n == "other"))) for n in names}
    optimizer = rode.RODE(list(params.items()), radius="learned", process_group=True)
    for p in params.values():
        p.grad = torch.ones(8, 6)
    params["zero"].grad[0, 0] = 3e19
    return outcome(optimizer.step, *params.values())


def skip(rank):
    params = parameters()
    optimizer = make("RODE", params, process_group=True, on_non_finite="skip")
    set_gradients(params, 11)
    if rank == 1:
        params["wide"].grad[0, 0] = params["table"].grad[-1, 0] = float("inf")
    before = weights(params)
    optimizer.step()
    return [name for name, p in params.items() if p.numel() and torch.equal(p, before[name])]


def construct_badly(rank):
    out = {}

    def bad(name, act):
        out[name] = outcome(act)

    def made(which, other, **more):
        return lambda: make(
            "Muon", parameters(), process_group=True, **(other if rank == which else {}), **more
        )

    bad("options", made(1, {"momentum": 0.5}))
    bad("refused", made(2, {"momentum": 7}))
    bad("policy", made(3, {"on_non_finite": "skip"}))

    def shapes():
        params = parameters()
        if rank == 3:
            params["wide"] = torch.nn.Parameter(torch.ones(5, 30))
        make("Muon", params, process_group=True)

    bad("shapes", shapes)
    version = _engine.version
    if rank == 1:
        _engine.version = lambda: "9.9.9"
    bad("version", made(0, {}))
    _engine.version = version
    bad("splits", made(0, {}, splits="nowhere=3"))
    return out


def own_nothing():
    """One matrix for four ranks."""
    p = torch.nn.Parameter(values(1)["wide"])
    optimizer = rode.RODE([("wide", p)], process_group=True)
    for t in range(3):
        p.grad = values(10 + t)["wide"]
        optimizer.step()
    return {"weight": p.detach().clone(), "own": len(optimizer._share.own)}


LORA = (("base.lora_A.weight", (96, 64)), ("classifier.weight", (8, 8)))


def train_lora(**more):
    """What a rank owns must not decide the route: the classifier alone is no LoRA."""
    generator = torch.Generator().manual_seed(7)
    params = [torch.nn.Parameter(torch.randn(s, generator=generator)) for _, s in LORA]
    optimizer = rode.RODE(list(zip((n for n, _ in LORA), params, strict=True)), **more)
    for _ in range(3):
        for p in params:
            p.grad = torch.randn(p.shape, generator=generator)
        optimizer.step()
    return [p.detach().clone() for p in params]


def add_groups():
    """Added after a step, where most ranks own nothing, and before state is loaded."""
    params = parameters()
    wide, table = params["wide"], params["table"]
    optimizer = rode.RODE([("wide", wide)], process_group=True)
    optimizer.metadata()  # makes an engine
    optimizer.add_param_group({"params": [("table", table)], "rule": "rest"})
    set_gradients(params, 11)
    optimizer.step()
    saved, held = optimizer.consolidated_state_dict(to=None), weights(params)
    optimizer.step()
    other = parameters()
    for name, p in other.items():
        p.data.copy_(held[name])
    resumed = rode.RODE([("wide", other["wide"])], process_group=True)
    resumed.add_param_group({"params": [("table", other["table"])], "rule": "rest"})
    resumed.load_state_dict(saved)
    set_gradients(other, 11)
    resumed.step()
    same = all(torch.equal(other[name], params[name]) for name in ("wide", "table"))
    late = rode.RODE([("wide", wide)], process_group=True)
    late.step()
    late.add_param_group({"params": [("table", table)], "rule": "rest"})
    return {"resumed": same, "late": outcome(late.step, wide, table)}


def change_options():
    """A table in parts cannot get state of blocks, nor be loaded with it."""
    params = parameters()
    optimizer = make("AdamW", params, process_group=True)
    train(params, optimizer, 0, 1)
    for each in optimizer.param_groups:
        each["state_dtype"] = "int8"
    out = {"set": outcome(optimizer.step, params["table"])}
    for each in optimizer.param_groups:
        each["state_dtype"] = "fp32"
    out["back"] = outcome(optimizer.step, params["table"])
    blocks = make("AdamW", params, process_group=True, state_dtype="int8")
    blocks.step()
    saved = blocks.consolidated_state_dict(to=None)
    out["load"] = outcome(lambda: optimizer.load_state_dict(saved))
    out["after"] = outcome(optimizer.step, params["table"])
    return out


def train_ddp(rank, pair):
    out = {}
    for group in (None, pair):
        torch.manual_seed(4)
        model = torch.nn.parallel.DistributedDataParallel(TinyModel(), process_group=pair)
        optimizer = rode.RODE(model.module, process_group=group)
        for t in range(4):
            tokens = torch.randint(0, 50, (8, 5), generator=torch.Generator().manual_seed(t))
            part = tokens.chunk(2)[rank % 2]
            optimizer.zero_grad()
            logits = model(part).flatten(0, 1)
            torch.nn.functional.cross_entropy(logits, ((part * 7 + 3) % 50).flatten()).backward()
            optimizer.step()
        out["alone" if group is None else "shared"] = model.module.state_dict()
    return out


def stop_answering(rank, folder, group):
    """One rank is slow, then too late, then one is killed."""
    params = parameters()
    optimizer = make("RODE", params, process_group=group, timeout=30)
    set_gradients(params, 11)
    if rank == 1:
        time.sleep(1.3)  # longer than ranks wait before they look whether another has failed
    out = {"slow": outcome(optimizer.step)}
    dist.barrier()
    optimizer = make("RODE", params, process_group=group, timeout=4)
    if rank == 2:
        wait_for(folder, [f"late.{r}" for r in range(WORLD) if r != 2])
    else:
        began = time.monotonic()
        out["late"] = outcome(optimizer.step, *params.values())
        out["late"]["seconds"] = time.monotonic() - began
        mark(folder, f"late.{rank}")
    optimizer = make("RODE", params, process_group=True, timeout=30)
    optimizer.step()
    if rank == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    out["killed"] = outcome(optimizer.step)
    out["killed"]["seconds"] = time.monotonic() - began
    return out


def mark(folder, name):
    with open(f"{folder}/{name}", "w"):
        pass


def wait_for(folder, names):
    while not all(os.path.exists(f"{folder}/{name}") for name in names):
        time.sleep(0.01)


def process(rank, folder):
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=WORLD)
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    singles = [dist.new_group([r]) for r in range(WORLD)]
    everyone = dist.new_group(list(range(WORLD)))
    groups = {1: singles[rank], 2: pairs[rank // 2], 4: dist.group.WORLD}
    results = {
        "steps": {(k, n): step_all(k, n, groups[n]) for k in KINDS for n in SIZES},
        "resume": {k: resume(k, groups, folder, rank) for k in ("RODE", "SOAP", "AdamW")},
        "bad": step_badly(rank),
        "skip": skip(rank),
        "zero": start_at_zero(),
        "construct": construct_badly(rank),
        "nothing": own_nothing(),
        "lora": train_lora(process_group=groups[2]),
        "added": add_groups(),
        "changed": change_options(),
        "ddp": train_ddp(rank, groups[2]),
    }
    torch.save(results, f"{folder}/{rank}.pt")
    results = stop_answering(rank, folder, everyone)
    torch.save(results, f"{folder}/{rank}.end.pt")
    mark(folder, f"end.{rank}")
    wait_for(folder, [f"end.{r}" for r in range(WORLD - 1)])
    os._exit(0)  # without gloo's destructors, which may wait for a peer that is gone


if __name__ == "__main__":
    process(int(sys.argv[1]), sys.argv[2])
