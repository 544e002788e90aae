# SPDX-License-Identifier: Apache-2.0
"""The training loop: accumulation, clipping, schedule, validation, the best model, checkpoints.

What a step does depends on its number and the seed only, so that a run that was killed continues
as if it had not been.
"""

import math
import pathlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

import rode
from rode._command import Failed, Lines, note, whole_lines
from rode.finetune import protocol, rounding, store
from rode.finetune.encode import IGNORED, Encoded, batch_of


class Diverged(Failed):
    """A step met values that are not finite."""


class _Stopped(Exception):
    """By a signal: incomplete work is dropped."""


@dataclass
class Plan:
    """What a run does; sizes as in the paper unless the command line says otherwise."""

    optimizer: str
    options: dict[str, Any]
    seed: int
    steps: int
    warmup: int
    micro_batch: int
    accumulation: int
    clip: float
    eval_interval: int
    eval_batch: int
    checkpoint_interval: int
    until: int  # pauses after this step
    measure_rounding: bool
    trial: bool  # of a sweep: no model is kept


@dataclass
class Progress:
    step: int = 0  # steps done
    best: float = math.inf
    best_step: int = 0
    validated: int = 0  # the last step that was
    seconds: float = 0.0
    started: float = field(default_factory=time.monotonic)

    def elapsed(self) -> float:
        return self.seconds + time.monotonic() - self.started


def order(count: int, seed: int, epoch: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    return [int(i) for i in torch.randperm(count, generator=generator)]


def samples(rows: list[Encoded], seed: int, first: int, count: int) -> list[Encoded]:
    """`count` examples from the `first`-th on of endless epochs, each in an order of its own."""
    out = []
    shuffled: tuple[int, list[int]] = (-1, [])
    for position in range(first, first + count):
        epoch, place = divmod(position, len(rows))
        if shuffled[0] != epoch:
            shuffled = (epoch, order(len(rows), seed, epoch))
        out.append(rows[shuffled[1][place]])
    return out


def loss_sum(model: Any, rows: list[Encoded], pad: int, device: torch.device) -> torch.Tensor:
    """Cross entropy summed over the answers' tokens. Positions before the first answer have no
    logits: with large vocabularies these would be most of the activations."""
    batch = batch_of(rows, pad, device)
    labels = batch.pop("labels")
    kept = labels.shape[1] - min(row.prompt for row in rows) + 1
    kept = min(kept, labels.shape[1])
    logits = model(**batch, use_cache=False, logits_to_keep=kept).logits[:, -kept:]
    targets = labels[:, labels.shape[1] - kept + 1 :]
    return torch.nn.functional.cross_entropy(
        logits[:, :-1].float().flatten(0, 1),
        targets.flatten(),
        ignore_index=IGNORED,
        reduction="sum",
    )


def answer_tokens(rows: list[Encoded]) -> int:
    # The first token of a sequence has no prediction.
    return sum(len(row.tokens) - max(row.prompt, 1) for row in rows)


@torch.no_grad()
def validation_loss(
    model: Any,
    rows: list[Encoded],
    size: int,
    pad: int,
    device: torch.device,
    between: Callable[[], None] = lambda: None,
) -> float:
    """The mean over all answer tokens of all examples. `between` is called before every batch."""
    model.eval()
    by_length = sorted(rows, key=lambda row: len(row.tokens))
    total = 0.0
    for first in range(0, len(by_length), size):
        between()
        total += loss_sum(model, by_length[first : first + size], pad, device).double().item()
    model.train()
    return total / answer_tokens(rows)


class Trainer:
    def __init__(
        self,
        folder: pathlib.Path,
        plan: Plan,
        model: Any,
        tokenizer: Any,
        train: list[Encoded],
        validation: list[Encoded],
        about: dict[str, Any],
    ) -> None:
        self.folder, self.plan, self.model, self.tokenizer = folder, plan, model, tokenizer
        self.train_rows, self.validation_rows, self.about = train, validation, about
        self.device = next(model.parameters()).device
        self.optimizer = protocol.make_optimizer(
            plan.optimizer, protocol.groups_of(model), plan.options
        )
        self.progress = Progress()
        self.saved = self.saved_best = 0  # the last checkpoint's step, and the best that it knows
        self.stopping = False  # set by a signal
        self.log: Lines

    def restore(self) -> None:
        """Continues from the last checkpoint; without one, from the beginning."""
        kept: list[dict[str, Any]] = []
        saved = store.checkpoints(self.folder)
        if saved:
            state = store.load(saved[-1], self.model, self.optimizer)
            best = math.inf if state["best"] is None else state["best"]
            step, validated = state["step"], state["validated"]
            self.progress = Progress(step, best, state["best_step"], validated, state["seconds"])
            reached = {"validation": validated}  # others: the step itself
            log = whole_lines(self.folder / "log.jsonl")
            kept = [r for r in log if r["step"] <= reached.get(r["kind"], step)]
            self.saved, self.saved_best = step, self.progress.best_step
            store.keep_best(self.folder, self.saved_best, {self.saved_best})
            note(f"continuing after step {self.progress.step}")
        self.log = Lines(self.folder / "log.jsonl", kept)

    def run(self) -> dict[str, Any]:
        """Steps until the end or the pause; returns what result.json says."""
        plan, progress = self.plan, self.progress
        self.model.train()
        last = min(plan.steps, plan.until)
        try:
            while True:
                done = progress.step
                due = done % plan.eval_interval == 0 or done == plan.steps
                if due and progress.validated < done:
                    self._validate()
                if done != self.saved and (done % plan.checkpoint_interval == 0 or done >= last):
                    self._save()
                if done >= last:
                    return self.result()
                self._step()
        except _Stopped:
            if progress.step != self.saved:
                self._save()
            raise Failed(
                f"[train] stopped after step {progress.step}, which is saved; --resume continues"
            ) from None
        finally:
            self.log.close()

    def _check_stop(self) -> None:
        if self.stopping:
            raise _Stopped

    def result(self) -> dict[str, Any]:
        plan, progress = self.plan, self.progress
        finished = progress.step == plan.steps
        return {
            "status": "finished" if finished else "paused",
            "optimizer": plan.optimizer,
            "seed": plan.seed,
            "steps": progress.step,
            "best_validation_loss": progress.best if progress.best_step else None,
            "best_step": progress.best_step,
            "seconds": progress.elapsed(),
            "model": str(self.folder / "best") if progress.best_step and not plan.trial else None,
        }

    def _step(self) -> None:
        plan, t = self.plan, self.progress.step
        torch.manual_seed(plan.seed * 1_000_003 + t)  # for models with dropout
        per_step = plan.micro_batch * plan.accumulation
        rows = samples(self.train_rows, plan.seed, t * per_step, per_step)
        tokens = answer_tokens(rows)
        total = torch.zeros((), dtype=torch.float64)
        for first in range(0, per_step, plan.micro_batch):
            self._check_stop()
            part = rows[first : first + plan.micro_batch]
            loss = loss_sum(self.model, part, self.tokenizer.pad_token_id, self.device)
            torch.autograd.backward(loss / tokens)
            total += loss.detach().double().cpu()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), plan.clip)
        if t == 0 and plan.measure_rounding:
            shares = rounding.lost_updates(plan.optimizer, plan.options, self.model)
            note(rounding.line(shares))
            self.log.add({"kind": "rounding", "step": 0, **shares})
        factor = protocol.multiplier(t, plan.steps, plan.warmup)
        protocol.set_rates(self.optimizer, factor)
        mean = (total / tokens).item()
        try:
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            self.optimizer.check()
        except rode.Error as error:
            if error.kind != "non-finite":
                raise
            raise Diverged(
                f"[train] step {t}: {error}; the last checkpoint is kept; use lower rates"
            ) from None
        self.progress.step = t + 1
        record = {"kind": "train", "step": t + 1, "loss": mean, "grad_norm": float(norm)}
        extra = {"multiplier": factor, "tokens": tokens, "seconds": self.progress.elapsed()}
        self.log.add({**record, **extra})

    def _validate(self) -> None:
        progress = self.progress
        size, pad = self.plan.eval_batch, self.tokenizer.pad_token_id
        rows, between = self.validation_rows, self._check_stop
        loss = validation_loss(self.model, rows, size, pad, self.device, between)
        progress.validated = progress.step
        best = math.isfinite(loss) and loss < progress.best
        if best:
            progress.best, progress.best_step = loss, progress.step
        if best and not self.plan.trial:
            about = {**self.about, "step": progress.step, "validation_loss": loss}
            store.save_best(self.folder, self.model, self.tokenizer, progress.step, about)
            store.keep_best(self.folder, progress.step, {self.saved_best})
        record = {"kind": "validation", "step": progress.step, "loss": loss, "best": best}
        self.log.add({**record, "seconds": progress.elapsed()})
        note(f"step {progress.step}: validation loss {loss:.4f}{' (best)' if best else ''}")

    def _save(self) -> None:
        progress = self.progress
        state = {
            "step": progress.step,
            "best": progress.best if progress.best_step else None,
            "best_step": progress.best_step,
            "validated": progress.validated,
            "seconds": progress.elapsed(),
        }
        store.save(self.folder, self.model, self.optimizer, state)
        self.saved, self.saved_best = progress.step, progress.best_step
        store.keep_best(self.folder, progress.best_step, {progress.best_step})
