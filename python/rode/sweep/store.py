# SPDX-License-Identifier: Apache-2.0
"""A study in Optuna's SQLite storage, which optuna-dashboard opens. Several processes may share it."""

import math
import pathlib
import uuid
from typing import Any

from rode._command import BadUsage, Failed, reason
from rode.sweep.outcome import Outcome
from rode.sweep.plan import Plan
from rode.sweep.propose import (
    DIVERGED,
    FINISHED,
    RUNNING,
    Record,
    frozen,
    require_optuna,
)
from rode.sweep.space import Values

_REMEDY = "rode sweep ask and tell work without it"


def require_same(stored: dict[str, Any], asked: dict[str, Any], where: str) -> None:
    """A study must continue with the options it was started with."""
    for key, now in asked.items():
        if stored.get(key) != now:
            raise BadUsage(
                f"[sweep] {where} was started with {key} = {stored.get(key)}, but now it is "
                f"{now}; expected the same; repeat the first command's options, or use another "
                "file or --out"
            )


def _require_own(path: pathlib.Path, plan: Plan, name: str, studies: dict[str, Any]) -> None:
    """Trials are kept by optimizer: a folder is for one task."""
    for other, attributes in studies.items():
        task = attributes.get("rode", {}).get("task", plan.task)
        if task != plan.task:
            raise BadUsage(
                f"[sweep] '{path}' has the study '{other}' of task '{task}', but now the task is "
                f"'{plan.task}'; expected one task per folder; use another --out"
            )
    folder = path.parent / plan.optimizer
    if name not in studies and any(folder.glob("trial-*")):
        raise BadUsage(
            f"[sweep] '{folder}' has trials of a study that '{path}' does not have; a new study "
            "needs a folder without trials; use another --out, or move the folder away"
        )


class Store:
    """Not for threads; writes are serialised by the caller's lock."""

    def __init__(self, path: pathlib.Path, plan: Plan, candidates: list[Values]) -> None:
        """`path`: of the database; the trials' folders are next to it, by optimizer."""
        optuna = require_optuna(_REMEDY)
        self.optuna = optuna
        self.space = plan.space
        asked = {**plan.identity(), "candidates": candidates}
        name = f"{pathlib.Path(plan.task).stem} {plan.optimizer}"
        url = f"sqlite:///{path}"
        try:
            others = optuna.get_all_study_summaries(url, include_best_trial=False)
            _require_own(path, plan, name, {o.study_name: o.user_attrs for o in others})
            self.study = optuna.create_study(
                storage=url,
                study_name=name,
                direction="minimize",
                load_if_exists=True,
            )
        except Failed:
            raise
        except Exception as error:  # SQLAlchemy's, which has many kinds
            raise Failed(
                f"[sweep] '{path}' cannot be opened: {reason(error)}; expected an SQLite file of "
                "Optuna in a folder that can be written; choose another --out"
            ) from None
        stored = self.study.user_attrs.get("rode")
        if stored is None:
            self.study.set_user_attr("rode", asked)
        else:
            require_same(stored, asked, f"the study '{name}' of '{path}'")

    def history(self) -> list[Record]:
        """All trials, in order of their numbers."""
        states = self.optuna.trial.TrialState
        out = []
        for trial in self.study.get_trials(deepcopy=False):
            if set(trial.params) != set(self.space.ranges):
                raise Failed(
                    f"[sweep] trial {trial.number} of the study has values of "
                    f"{', '.join(trial.params) or 'nothing'}; expected "
                    f"{', '.join(self.space.ranges)}; it was not made by rode sweep; use another "
                    "--out"
                )
            status, value = RUNNING, math.inf
            if trial.state == states.COMPLETE:
                value = trial.value
                status = FINISHED if math.isfinite(value) else DIVERGED
            elif trial.state != states.RUNNING:  # set by hand: the worst, never dropped
                status = DIVERGED
            details = trial.user_attrs.get("result", {})
            out.append(Record(trial.number, dict(trial.params), status, value, details))
        return out

    def add(self, values: Values) -> int:
        """A running trial, with its values at once: a kill leaves all of it or nothing."""
        token = uuid.uuid4().hex
        told = {"settings": self.space.settings(values), "token": token}
        self.study.add_trial(frozen(self.space, Record(-1, values), user_attrs=told))
        trials = self.study.get_trials(deepcopy=False)
        return next(int(t.number) for t in reversed(trials) if t.user_attrs.get("token") == token)

    def finish(self, number: int, outcome: Outcome) -> None:
        trial = next(t for t in self.study.get_trials(deepcopy=False) if t.number == number)
        told = {"status": outcome.status, **outcome.details}
        self.optuna.trial.Trial(self.study, trial._trial_id).set_user_attr("result", told)
        self.study.tell(number, outcome.value)
