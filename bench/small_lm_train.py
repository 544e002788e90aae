# SPDX-License-Identifier: Apache-2.0
"""One run of bench/small_lm.py: a model, an optimizer, a rate, a seed; in a process of its own."""

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from small_lm_model import Decoder, Shape, initialise
from small_lm_plan import ENTRIES, Run
from torch.nn import functional as F

import rode


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is the same for all runs of a table."""

    shape: Shape = dataclasses.field(default_factory=Shape)
    init: str = "0.02"
    steps: int = 500
    warmup: int = 50
    batch: int = 32
    evaluations: int = 10
    valid_windows: int = 1024
    bf16: bool = False
    compile: bool = False
    graph: bool = False


def multiplier(step: int, warmup: int, steps: int) -> float:
    """Linear warm-up, then a cosine to zero; step counts from 0."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


class Batches:
    """Windows of the data on the device. The offsets of a seed are the same for every optimizer,
    and nothing is copied to the device within a run."""

    def __init__(self, train: np.ndarray, valid: np.ndarray, settings: Settings, device: str):
        self.context, self.batch = settings.shape.context, settings.batch
        for part, data in (("training", train), ("validation", valid)):
            if data.size < self.context + 1:
                raise ValueError(f"{data.size} {part} bytes; a window takes {self.context + 1}")
        self.train = torch.from_numpy(np.array(train)).to(device)
        self.valid = torch.from_numpy(np.array(valid)).to(device)
        self.window = torch.arange(self.context + 1, device=device)
        windows = min(settings.valid_windows, (valid.size - 1) // self.context)
        starts = np.linspace(0, valid.size - self.context - 1, windows).astype(np.int64)
        self.valid_starts = torch.from_numpy(starts).to(device)

    def offsets(self, seed: int, steps: int) -> torch.Tensor:
        last = self.train.numel() - self.context
        drawn = np.random.default_rng(seed).integers(0, last, size=(steps, self.batch))
        return torch.from_numpy(drawn).to(self.train.device)

    def cut(self, data: torch.Tensor, starts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows = data[starts[:, None] + self.window].long()
        return rows[:, :-1], rows[:, 1:]


def loss_of(model: torch.nn.Module, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(tokens).float().flatten(0, 1), targets.flatten())


@torch.no_grad()
def validate(model: torch.nn.Module, batches: Batches, context: Any, stride: int = 1) -> float:
    """Mean loss over every stride-th validation window, in nats a byte."""
    sums = []
    chosen = batches.valid_starts[::stride]
    for starts in chosen.split(4 * batches.batch):
        tokens, targets = batches.cut(batches.valid, starts)
        with context():
            sums.append(loss_of(model, tokens, targets).double() * len(starts))
    return (torch.stack(sums).sum() / len(chosen)).item()


Gradients = Callable[[torch.Tensor], torch.Tensor]


def eager(model: torch.nn.Module, batches: Batches, context: Any) -> Gradients:
    """From the offsets of a batch to its loss, and the gradients of the model as they are then."""

    def gradients(starts: torch.Tensor) -> torch.Tensor:
        tokens, targets = batches.cut(batches.train, starts)
        model.zero_grad()
        with context():
            loss = loss_of(model, tokens, targets)
        loss.backward()
        return loss.detach()

    return gradients


def captured(gradients: Gradients, model: torch.nn.Module, starts: torch.Tensor) -> Gradients:
    """The same as one CUDA graph: a small model is otherwise bound by its launches."""
    static = starts.clone()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):  # lazy initialisation must be over before a capture
            gradients(static)
    torch.cuda.current_stream().wait_stream(side)
    # Without gradients at the start, every replay writes them anew instead of adding to them.
    model.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = gradients(static)

    def replay(starts: torch.Tensor) -> torch.Tensor:
        static.copy_(starts)
        graph.replay()
        return loss

    return replay


def _curve(losses: torch.Tensor, done: int, points: int = 50) -> list[list[float | None]]:
    """Means over equal stretches of steps: [last step of the stretch, mean]."""
    values = losses[:done].cpu().double()
    size = max(1, math.ceil(len(losses) / points))
    out: list[list[float | None]] = []
    for first in range(0, done, size):
        part = values[first : first + size]
        mean = part.mean().item()
        out.append([first + len(part), round(mean, 5) if math.isfinite(mean) else None])
    return out


def train(run: Run, settings: Settings, batches: Batches, options: dict[str, Any]) -> dict:
    """The record of a run. One that diverges says so and why; its valid_loss is None unless it is
    finite."""
    start = time.perf_counter()
    device = batches.train.device
    entry = ENTRIES[run.optimizer]
    model = Decoder(settings.shape)
    initialise(model, settings.init, run.seed)
    model.to(device)
    arguments = {**entry.arguments(run.lr), **options}
    optimizer = getattr(rode, entry.kind)(model, **arguments)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda t: multiplier(t, settings.warmup, settings.steps)
    )
    forward = torch.compile(model) if settings.compile else model

    def context() -> Any:
        if not settings.bf16:
            return contextlib.nullcontext()
        # A cast that is cached outside of a graph would not be made anew in it.
        return torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=not settings.graph)

    offsets = batches.offsets(run.seed, settings.steps)
    gradients = eager(forward, batches, context)
    if settings.graph:
        gradients = captured(gradients, model, offsets[0])
    losses = torch.zeros(settings.steps, device=device)
    every = max(1, settings.steps // settings.evaluations)
    curve: list[list[float | None]] = []
    diverged: str | None = None
    done = 0
    try:
        for step in range(settings.steps):
            losses[step] = gradients(offsets[step])  # read later: nothing waits for the device
            optimizer.step()
            scheduler.step()
            done = step + 1
            if done % every == 0 or done == settings.steps:
                optimizer.check()  # a step refused on the device
                # An eighth of the windows is enough for the curve.
                stride = 1 if done == settings.steps else 8
                valid = validate(forward, batches, context, stride)
                curve.append([done, valid if math.isfinite(valid) else None])
                if not math.isfinite(valid) or not bool(losses[:done].isfinite().all()):
                    diverged = f"loss not finite by step {done}"
                    break
    except rode.Error as error:
        if getattr(error, "kind", "") != "non-finite":
            raise
        diverged = f"step {done}: {error}"
    final = curve[-1][1] if curve and done == settings.steps else None
    uniform = math.log(settings.shape.vocabulary)
    if diverged is None and final is not None and final > 1.05 * uniform:
        diverged = f"validation loss {final:.3f}, above that of uniform bytes ({uniform:.3f})"
    return {
        **dataclasses.asdict(run),
        "options": arguments,
        "valid_loss": None if diverged else final,
        "diverged": diverged,
        "steps_done": done,
        "train": _curve(losses, done),
        "valid": curve,
        "seconds": round(time.perf_counter() - start, 3),
    }


# ---- Worker processes -------------------------------------------------------------------------

_worker: dict[str, Any] = {}


def start_worker(
    device: str, threads: int, settings: Settings, train_data: np.ndarray, valid: np.ndarray
) -> None:
    torch.set_num_threads(threads)
    if device == "cuda":
        torch.set_float32_matmul_precision("high")  # TF32
    _worker["settings"] = settings
    _worker["batches"] = Batches(train_data, valid, settings, device)


def work(run: Run, options: dict[str, Any]) -> dict:
    return train(run, _worker["settings"], _worker["batches"], options)
