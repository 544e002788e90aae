# SPDX-License-Identifier: Apache-2.0
"""What bench/small_lm.py compares: optimizers, the search for their rates, the table.

Every optimizer has five trials on the first seed: its centre, a quarter and four times that; then
half and twice the best of the three. So each covers a range of 64 in steps of 2 or 4 by the same
budget, and a centre that is off by up to 8 costs nothing. The best of the five is then run on the
other seeds.
"""

import dataclasses
import math
import statistics
from typing import Any

# Embedding, norms, biases: the same for all, near the defaults. Only SGD, whose rates have other
# units, has one rate for everything.
REST_RATE = 3e-3
SEEDS = (1, 2, 3)
TRIALS = 5


@dataclasses.dataclass(frozen=True)
class Entry:
    """One row: a class of the package, its options, the centre of its rates."""

    kind: str
    centre: float
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    one_rate: bool = False

    def arguments(self, lr: float) -> dict[str, Any]:
        return {"lr": lr, "lr_rest": lr if self.one_rate else REST_RATE, **self.options}


def _rode(**options: Any) -> Entry:
    return Entry("RODE", 3e-3, options)


# Slow ones first: on CUDA, SOAP's bases come from LAPACK on the host. The centres are round
# numbers for a model of this size; the defaults of the package belong to one of 114M.
ENTRIES = {
    "soap": Entry("SOAP", 3e-3),
    "rode-published": _rode(reproject="every"),
    "rode-guarded": _rode(),
    "rode-nesterov": _rode(nesterov=True),
    "rode-adaptive": _rode(nesterov=True, radius="adaptive"),
    # The same with a radius three times as fast as the default's 1e-2.
    "rode-adaptive-3": _rode(nesterov=True, radius="adaptive", lr_rho=3e-2),
    "muon-rms": Entry("Muon", 5e-3, {"scale": "rms"}),
    "mars-m": Entry("MARSM", 5e-3),
    "adamw": Entry("AdamW", 2e-3, {"betas": (0.9, 0.95), "weight_decay_rest": 9e-4}),
    "ademamix": Entry("AdEMAMix", 2e-3),
    "adafactor": Entry("Adafactor", 2e-3),
    "sgd": Entry("SGD", 2e-1, {"momentum": 0.9, "weight_decay": 5e-4}, one_rate=True),
}


@dataclasses.dataclass(frozen=True)
class Run:
    optimizer: str
    lr: float
    seed: int

    def __str__(self) -> str:
        return f"{self.optimizer} lr {self.lr:g} seed {self.seed}"


def run_of(record: dict[str, Any]) -> Run:
    return Run(record["optimizer"], record["lr"], record["seed"])


def _rate(value: float) -> float:
    return float(f"{value:.4g}")  # what a file holds, to the digit


def _best(trials: list[dict[str, Any]]) -> dict[str, Any]:
    """The lowest validation loss; where all diverged, the lowest rate."""
    healthy = [record for record in trials if record["diverged"] is None]
    if healthy:
        return min(healthy, key=lambda record: record["valid_loss"])
    return min(trials, key=lambda record: record["lr"])


Records = dict[Run, dict[str, Any]]


def coarse(name: str, centre: float) -> list[Run]:
    return [Run(name, _rate(centre * factor), SEEDS[0]) for factor in (0.25, 1, 4)]


def trials(name: str, centre: float, records: Records) -> list[Run]:
    """The trials known so far: three, or all five."""
    first = coarse(name, centre)
    if not all(run in records for run in first):
        return first
    best = _best([records[run] for run in first])["lr"]
    return first + [Run(name, _rate(best * factor), SEEDS[0]) for factor in (0.5, 2)]


def wanted(name: str, centre: float, records: Records) -> list[Run]:
    """Every run of an optimizer that is known to be needed, given what has finished."""
    runs = trials(name, centre, records)
    if len(runs) < TRIALS or not all(run in records for run in runs):
        return runs
    chosen = _best([records[run] for run in runs])["lr"]
    return runs + [Run(name, chosen, seed) for seed in SEEDS[1:]]


def summarise(name: str, centre: float, records: Records) -> dict[str, Any]:
    """One row of the table; `complete` says whether all of its runs are there."""
    runs = wanted(name, centre, records)
    done = [run for run in runs if run in records]
    row: dict[str, Any] = {"optimizer": name, "complete": False, "runs": len(done)}
    tried = [run for run in trials(name, centre, records) if run in records]
    row["trials"] = len(tried)
    row["trials_diverged"] = sum(records[run]["diverged"] is not None for run in tried)
    if len(tried) < TRIALS:
        return row
    rates = sorted(run.lr for run in tried)
    chosen = _best([records[run] for run in tried])["lr"]
    row.update(lr=chosen, at_edge=chosen in (rates[0], rates[-1]))
    final = [records[Run(name, chosen, s)] for s in SEEDS if Run(name, chosen, s) in records]
    row["complete"] = len(final) == len(SEEDS)
    row["diverged"] = sum(record["diverged"] is not None for record in final)
    losses = [record["valid_loss"] for record in final if record["diverged"] is None]
    row["losses"] = losses
    row["mean"] = statistics.fmean(losses) if losses else None
    row["sd"] = statistics.stdev(losses) if len(losses) > 1 else None
    row["seconds"] = statistics.fmean(record["seconds"] for record in final)
    return row


def table(rows: list[dict[str, Any]]) -> str:
    """The rows by mean loss, those that diverged or are unfinished last."""

    def order(row: dict[str, Any]) -> tuple[bool, bool, float]:
        mean = row.get("mean")
        unknown = mean is None
        return not row["complete"], bool(row.get("diverged")), math.inf if unknown else mean

    def number(value: float | None) -> str:
        return "-" if value is None else f"{value:.4f}"

    head = f"{'optimizer':<16}{'mean':>8}{'SD':>8}{'lr':>10}{'trials':>8}{'s/run':>7}  notes"
    lines = [head, "-" * len(head)]
    for row in sorted(rows, key=order):
        notes = []
        if row.get("diverged"):
            notes.append(f"{row['diverged']} of {len(SEEDS)} seeds diverged, not in the mean")
        if row["trials_diverged"]:
            notes.append(f"{row['trials_diverged']} trials diverged")
        if row.get("at_edge"):
            notes.append("best rate at the edge of those tried")
        if not row["complete"]:
            notes.append(f"unfinished: {row['runs']} runs done")
        rate = f"{row['lr']:g}" if "lr" in row else "-"
        seconds = f"{row['seconds']:.1f}" if "seconds" in row else "-"
        lines.append(
            f"{row['optimizer']:<16}{number(row.get('mean')):>8}{number(row.get('sd')):>8}"
            f"{rate:>10}{row['trials']:>8}{seconds:>7}  {'; '.join(notes)}".rstrip()
        )
    return "\n".join(lines)
