#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a RODE step costs on 1 to 10,000 GPUs: time, bytes and memory, computed and not measured.

Kernel rates are those measured on one H200 (bench/results/h200.json), link rates the vendor's. The
plan is that of `plan_shards`: the most expensive matrix first, to the rank with the least. With
`--check` it is compared with real processes of this machine.
"""

import argparse
import heapq
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).resolve().parents[1]
GPUS = (1, 8, 64, 512, 4096, 10000)
PER_NODE = 8
# Published, in bytes per second and direction for one GPU: NVLink 4 within a node of eight H200,
# one 400 Gbit/s adapter per GPU between nodes. What of them collectives reach is an assumption.
NVLINK, NETWORK, REACHED = 450e9, 50e9, 0.8
LATENCY = 20e-6  # of a collective, times log2 of the ranks: an assumption
CARD = 141e9  # bytes of an H200
# Of the card, for activations and what the context of CUDA and the collectives take: an assumption,
# since neither is computed here.
RESERVE = 0.25
ITERATIONS = 5
TRAINING_FLOPS = 0.4 * 989e12  # of forward and backward: 40 % of the H200's dense bf16 peak


def size(matrices: list[tuple[int, int, int]]) -> int:
    return sum(m * n * count for m, n, count in matrices)


@dataclass(frozen=True)
class Model:
    """A decoder with grouped queries and a gated MLP; of experts, those of a layer."""

    name: str
    layers: int
    width: int
    hidden: int  # of the MLP, or of one expert
    vocabulary: int
    kv: int  # width of keys and of values
    experts: int = 1
    used: int = 1  # experts per token
    tied: bool = False

    def shared(self) -> list[tuple[int, int, int]]:
        """Rows, columns, how many: of the matrices that every token meets."""
        n, w, h = self.layers, self.width, self.hidden
        out = [(w, w, 2 * n), (self.kv, w, 2 * n)]
        out += [(h, w, 2 * n), (w, h, n)] if self.experts == 1 else [(self.experts, w, n)]
        return out

    def of_experts(self) -> list[tuple[int, int, int]]:
        """The same of one expert in every layer."""
        if self.experts == 1:
            return []
        return [(self.hidden, self.width, 2 * self.layers), (self.width, self.hidden, self.layers)]

    def matrices(self) -> list[tuple[int, int, int]]:
        return self.shared() + [(m, n, k * self.experts) for m, n, k in self.of_experts()]

    @property
    def matrix_parameters(self) -> int:
        return size(self.matrices())

    @property
    def rest(self) -> int:
        embeddings = 1 if self.tied else 2
        return embeddings * self.vocabulary * self.width + (2 * self.layers + 1) * self.width

    @property
    def active(self) -> int:
        """Parameters that a token meets."""
        idle = 3 * self.width * self.hidden * self.layers * (self.experts - self.used)
        return self.matrix_parameters + self.rest - idle


MODELS = (
    Model("dense 1B", 16, 2048, 5632, 128256, 512),
    Model("dense 8B", 32, 4096, 14336, 128256, 1024),
    Model("dense 70B", 80, 8192, 28672, 128256, 1024),
    Model("dense 405B", 126, 16384, 53248, 128256, 1024),
    Model("dense 1T", 160, 22528, 67584, 128256, 1024),
    Model("experts 30B", 48, 2048, 768, 151936, 512, 128, 8),
    Model("experts 235B", 94, 4096, 1536, 151936, 512, 128, 8),
    Model("experts 1T", 61, 7168, 2048, 163840, 1024, 384, 8),
)


def flops(m: int, n: int) -> float:
    """Of Newton-Schulz with full products, as the measured rates count them."""
    long, short = max(m, n), min(m, n)
    return ITERATIONS * (4.0 * long * short * short + 2.0 * short**3)


class Rates:
    """From the measured steps: what is left when all memory is passed over at a copy's speed is
    Newton-Schulz."""

    FITTED = (("qwen2-114m", 768), ("qwen2-1.5b", 1536))  # shapes, most of the shorter sides

    def __init__(self, path: pathlib.Path) -> None:
        found = json.loads(path.read_text())
        self.memory = found["ceilings"]["copy_tbps"] * 1e12
        self._by_side: list[tuple[float, float]] = []  # shorter side, FLOP/s
        for shapes, side in self.FITTED:
            row = next(
                r
                for r in found["rows"]
                if r["shapes"] == shapes and r["optimizer"] == "rode" and not r["set"]
            )
            passed = 20 * row["managed_parameters"] + 28 * row["delegated_parameters"]
            left = row["median_ms"] * 1e-3 - passed / self.memory
            self._by_side.append((side, row["newton_schulz_flops"] / left))

    def products(self, m: int, n: int) -> float:
        """Constant above what was measured, proportional to the shorter side below."""
        (low, slow), (high, fast) = self._by_side
        side = min(m, n)
        if side <= low:
            return slow * side / low
        return slow + (fast - slow) * (min(side, high) - low) / (high - low)

    def seconds(self, m: int, n: int) -> float:
        return flops(m, n) / self.products(m, n)


def deal(matrices: list[tuple[int, int, int]], ranks: int, rates: Rates) -> tuple[float, float]:
    """Seconds of Newton-Schulz: the most that a rank has, and the mean."""
    jobs = sorted(((rates.seconds(m, n), count) for m, n, count in matrices), reverse=True)
    total = sum(seconds * count for seconds, count in jobs)
    heap = [0.0] * ranks
    for seconds, count in jobs:
        each, more = divmod(count, ranks) if len(set(heap)) == 1 else (0, count)
        if each:
            heap = [load + each * seconds for load in heap]
        for _ in range(more):
            heapq.heapreplace(heap, heap[0] + seconds)
    return max(heap), total / ranks


def link(ranks: int) -> float:
    return REACHED * (NVLINK if ranks <= PER_NODE else NETWORK)


@dataclass(frozen=True)
class Cost:
    model: str
    ranks: int
    way: str  # "data parallel" or "sharded"
    compute: float  # seconds of the rank with the most, Newton-Schulz and passes over memory
    transfer: float  # seconds
    received: float  # bytes that arrive at a rank
    state: float  # bytes of a rank
    memory: float  # bytes of a rank: weights, gradients, state, buffers; without activations
    balance: float  # largest Newton-Schulz time over the mean
    training: float  # seconds of forward and backward

    @property
    def step(self) -> float:
        return self.compute + self.transfer


def simulate(
    model: Model, ranks: int, way: str, rates: Rates, width: int = 2, tokens: int = 16384
) -> Cost:
    """`width`: bytes of a weight and of a gradient; momentum and moments are fp32."""
    matrices, rest = model.matrix_parameters, model.rest
    most, mean = deal(model.matrices(), ranks, rates)
    passes = (matrices * (12 + 2 * width) + rest * (20 + 2 * width)) / ranks / rates.memory
    state = (4 * matrices + 8 * rest) / ranks
    calls = math.log2(max(ranks, 2)) * LATENCY
    if ranks == 1:
        received, transfer = 0.0, 0.0
        memory = 2 * width * (matrices + rest) + state
    elif way == "data parallel":
        # Weights and gradients are whole everywhere; one agreement, up to three messages.
        received = width * (matrices + rest) * (ranks - 1) / ranks
        transfer = received / link(ranks) + 4 * calls
        messages = min(3, max(1, math.ceil(received / ranks / (64 << 20))))
        memory = 2 * width * (matrices + rest) + state + received / messages
        passes += width * (matrices + rest) / rates.memory  # gradients are read once more
    else:
        # Weight and gradient of a shard to the owner, the weight back; the rest stays. So do experts,
        # which are sharded by expert: some ranks have one more in every layer than others.
        sent = size(model.shared())
        local = math.ceil(model.experts / ranks) * size(model.of_experts())
        most, _ = deal(model.shared(), ranks, rates)
        most += math.ceil(model.experts / ranks) * sum(
            rates.seconds(m, n) * count for m, n, count in model.of_experts()
        )
        received = 3 * width * sent / ranks * (ranks - 1) / ranks
        transfer = received / link(ranks) + 4 * calls
        state = 4 * (sent / ranks + local) + 8 * rest / ranks
        held = (sent + rest) / ranks + local
        memory = 2 * width * held + state + 4 * width * sent / ranks
        passes = (
            (sent / ranks + local) * (12 + 2 * width) + rest / ranks * (20 + 2 * width)
        ) / rates.memory
    return Cost(
        model.name,
        ranks,
        way,
        most + passes,
        transfer,
        received,
        state,
        memory + (512 << 20),  # workspace of Newton-Schulz
        most / mean,
        6.0 * model.active * tokens / TRAINING_FLOPS,
    )


def table(rates: Rates) -> list[str]:
    lines = [
        "| model | GPUs | way | step ms | of it transfer | MB received "
        "| GB per GPU, without activations | largest / mean | of training |",
        "|---|---:|---|---:|---:|---:|---:|---:|---:|",
    ]
    for model in MODELS:
        for ranks in GPUS:
            for way in ("data parallel", "sharded"):
                if ranks == 1 and way == "sharded":
                    continue
                c = simulate(model, ranks, way, rates)
                if c.memory > (1 - RESERVE) * CARD:
                    continue
                lines.append(
                    f"| {model.name} | {ranks} | {way} | {1e3 * c.step:.2f} | "
                    f"{1e3 * c.transfer:.2f} | {c.received / 1e6:.0f} | {c.memory / 1e9:.1f} | "
                    f"{c.balance:.2f} | {c.step / c.training:.1%} |"
                )
    return lines


# ---- Real processes -------------------------------------------------------------------------

CHECKED = Model("checked", 4, 256, 704, 8192, 128, tied=True)


def run_process(folder: pathlib.Path, rank: int, ranks: int) -> None:
    """Steps of one process of several, with gloo and fp32; what it measured goes into a file."""
    import statistics
    import time

    import torch
    import torch.distributed as dist

    import rode

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store{ranks}", rank=rank, world_size=ranks
    )
    torch.manual_seed(1)
    shapes = [(m, n) for m, n, count in CHECKED.matrices() for _ in range(count)]
    matrices = [(f"m{i}", torch.nn.Parameter(torch.randn(s))) for i, s in enumerate(shapes)]
    rest = [("embedding", torch.nn.Parameter(torch.randn(CHECKED.vocabulary, CHECKED.width)))]
    rest += [
        (f"norm{i}", torch.nn.Parameter(torch.ones(CHECKED.width)))
        for i in range(2 * CHECKED.layers + 1)
    ]
    groups = [{"params": matrices, "rule": "matrix"}, {"params": rest, "rule": "rest"}]
    optimizer = rode.RODE(groups, process_group=True)
    for _, p in matrices + rest:
        p.grad = torch.randn(p.shape)
    times, gathers = [], []
    own = optimizer._share.ranks
    for _ in range(8):
        before = own.bytes
        begin = time.perf_counter()
        optimizer.step()
        times.append(time.perf_counter() - begin)
    message = own.bytes - before
    part = torch.zeros(max(message, 1), dtype=torch.uint8)
    whole = [torch.empty_like(part) for _ in range(ranks)]
    for _ in range(8):
        begin = time.perf_counter()
        dist.all_gather(whole, part)
        gathers.append(time.perf_counter() - begin)
    state = sum(v.numel() * v.element_size() for s in optimizer.state.values() for v in s.values())
    found = {
        "step": statistics.median(times[2:]),
        "gather": statistics.median(gathers[2:]) if ranks > 1 else 0.0,
        "received": message * (ranks - 1),
        "state": state,
    }
    (folder / f"{ranks}.{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    os._exit(0)  # without gloo's destructors, which may wait for a peer that is gone


def check(rates: Rates) -> list[dict[str, float]]:
    """Bytes, state and time of 2 and 4 processes beside what is computed for them. Times are from
    the step of one process here and the measured gathering of as many bytes."""
    rows = []
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        for ranks in (1, 2, 4):
            command = [sys.executable, __file__, "--folder", folder, "--ranks", str(ranks)]
            environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
            running = [
                subprocess.Popen([*command, "--rank", str(rank)], env=environment)
                for rank in range(ranks)
            ]
            if any([process.wait(timeout=300) for process in running]):
                raise RuntimeError(f"a process of {ranks} failed; see its error above")
            paths = [pathlib.Path(folder) / f"{ranks}.{rank}.json" for rank in range(ranks)]
            found = [json.loads(path.read_text()) for path in paths]
            measured = {key: max(one[key] for one in found) for key in found[0]}
            if ranks == 1:
                alone = measured["step"]
                continue
            cost = simulate(CHECKED, ranks, "data parallel", rates, width=4)
            computed = alone / ranks * max(1.0, ranks / cores) + measured["gather"]
            rows.append(
                {
                    "processes": ranks,
                    "received_measured": measured["received"],
                    "received_computed": cost.received,
                    "state_measured": measured["state"],
                    "state_computed": cost.state,
                    "step_ms_measured": 1e3 * measured["step"],
                    "step_ms_computed": 1e3 * computed,
                }
            )
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rates", type=pathlib.Path, default=ROOT / "bench/results/h200.json")
    parser.add_argument("--json", action="store_true", help="every combination, as JSON")
    parser.add_argument(
        "--check", action="store_true", help="beside 2 and 4 gloo processes here, as JSON"
    )
    for name in ("--folder", "--rank", "--ranks"):  # of the processes of --check
        parser.add_argument(name, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.folder:
        run_process(pathlib.Path(arguments.folder), int(arguments.rank), int(arguments.ranks))
    rates = Rates(arguments.rates)
    if arguments.check:
        print(json.dumps(check(rates), indent=1))
    elif arguments.json:
        costs = [
            simulate(model, ranks, way, rates)
            for model in MODELS
            for ranks in GPUS
            for way in ("data parallel", "sharded")
        ]
        print(json.dumps([{**vars(c), "step": c.step} for c in costs], indent=1))
    else:
        print("\n".join(table(rates)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
