# SPDX-License-Identifier: Apache-2.0
"""The values of the next trial: a fixed candidate, Optuna's TPE, or log-uniform draws.

Trial k has a random sequence of its own, made from the seed and k, so that a proposal depends on these
and on the trials before it and on nothing that a process would lose."""

import hashlib
import importlib
import importlib.util
import math
import random
from dataclasses import dataclass, field
from typing import Any

from rode._command import Failed
from rode.sweep.space import Space, Values

RUNNING, FINISHED, DIVERGED = "running", "finished", "diverged"
SAMPLERS = ("tpe", "random")
INSTALL = "pip install 'rode[sweep]', or pip install optuna"


@dataclass(frozen=True)
class Record:
    """A trial as a study has it."""

    number: int
    values: Values
    status: str = RUNNING
    value: float = math.inf  # what is minimized; of a diverged trial inf
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        return self.status != RUNNING


def has_optuna() -> bool:
    return importlib.util.find_spec("optuna") is not None


def require_optuna(remedy: str) -> Any:
    if not has_optuna():
        raise Failed(
            f"[sweep] Optuna is not installed, but this command needs it; {INSTALL}; {remedy}"
        )
    optuna = importlib.import_module("optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def best_of(history: list[Record]) -> Record | None:
    """The lowest; of equal ones the first. None where every trial diverged."""
    good = [record for record in history if record.status == FINISHED]
    return min(good, key=lambda record: (record.value, record.number), default=None)


def _digest(seed: int, number: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed} {number}".encode()).digest()[:4], "little")


def _random(space: Space, seed: int, number: int) -> Values:
    draw = random.Random(_digest(seed, number))
    # exp(log(x)) may leave the range by a rounding.
    return {
        key: min(max(math.exp(draw.uniform(math.log(low), math.log(high))), low), high)
        for key, (low, high) in space.ranges.items()
    }


def distributions(space: Space) -> dict[str, Any]:
    optuna = require_optuna("")
    return {
        key: optuna.distributions.FloatDistribution(low, high, log=True)
        for key, (low, high) in space.ranges.items()
    }


def frozen(space: Space, record: Record, **more: Any) -> Any:
    """A record as Optuna's trial."""
    optuna = require_optuna("")
    states = optuna.trial.TrialState
    return optuna.trial.create_trial(
        state=states.COMPLETE if record.ended else states.RUNNING,
        params=record.values,
        distributions=distributions(space),
        value=record.value if record.ended else None,
        **more,
    )


def _tpe(space: Space, seed: int, number: int, history: list[Record], given: Values) -> Values:
    optuna = require_optuna("--sampler random works without it")
    sampler = optuna.samplers.TPESampler(seed=_digest(seed, number), constant_liar=True)
    study = optuna.create_study(sampler=sampler, direction="minimize")
    study.add_trials([frozen(space, record) for record in history])
    if given:
        study.enqueue_trial(given)
    params = study.ask(distributions(space)).params
    return {key: params[key] for key in space.ranges}


def propose(
    space: Space,
    seed: int,
    history: list[Record],
    candidates: list[Values],
    sampler: str,
) -> Values:
    """Of trial number len(history). Running trials count as bad ones, so that workers differ."""
    number = len(history)
    given = candidates[number] if number < len(candidates) else {}
    if set(given) == set(space.ranges):
        return {key: given[key] for key in space.ranges}
    if sampler == "random":
        return {**_random(space, seed, number), **given}
    return _tpe(space, seed, number, history, given)
