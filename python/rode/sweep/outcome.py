# SPDX-License-Identifier: Apache-2.0
"""What came out of a trial, from the files of its run, by the rule of the sweep."""

import json
import math
import pathlib
from dataclasses import dataclass, field
from typing import Any

from rode._command import Failed, read_json
from rode.sweep.plan import RULES, Plan
from rode.sweep.propose import DIVERGED, FINISHED

# As `rode train` and `rode finetune` call them.
_KEYS = {
    RULES[0]: ("final_loss", "final_validation_loss"),
    RULES[1]: ("best_loss", "best_validation_loss"),
}
_KEPT = (
    "final_loss",
    "best_loss",
    "best_validation_loss",
    "weight_norm",
    "seconds",
    "steps",
)


@dataclass(frozen=True)
class Outcome:
    status: str
    value: float  # inf where the run diverged: the worst there is
    details: dict[str, Any] = field(default_factory=dict)


def _mean_training_loss(log: pathlib.Path, plan: Plan) -> float:
    try:
        lines = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise Failed(
            f"[sweep] '{log}' cannot be read ({error}); expected the log of a run; remove the "
            "trial's folder and repeat the command"
        ) from None
    losses = [line["loss"] for line in lines if line.get("kind") == "step"]
    if len(losses) < plan.steps:
        raise Failed(
            f"[sweep] '{log}' has {len(losses)} steps; expected {plan.steps}; remove the trial's "
            "folder and repeat the command"
        )
    return math.fsum(losses[-plan.last_steps :]) / plan.last_steps


def read_outcome(folder: pathlib.Path, plan: Plan) -> Outcome | None:
    """None while the run has no result."""
    path = folder / "result.json"
    if not path.exists():
        return None
    result = read_json(path, "sweep")
    status = result.get("status")
    details = {key: result[key] for key in _KEPT if key in result}
    if status == DIVERGED:
        return Outcome(DIVERGED, math.inf, details)
    if status != FINISHED:
        return None  # paused
    if plan.select == RULES[2]:
        value = _mean_training_loss(folder / "log.jsonl", plan)
    else:
        keys = [key for key in _KEYS[plan.select] if key in result]
        if not keys:
            raise Failed(
                f"[sweep] '{path}' has none of the keys {', '.join(_KEYS[plan.select])}; "
                f"expected one for '{plan.select}'; choose another --select"
            )
        value = result[keys[0]]
    # Fine-tuning says null where no evaluation was finite.
    if value is None or not math.isfinite(value):
        return Outcome(DIVERGED, math.inf, details)
    return Outcome(FINISHED, float(value), details)
