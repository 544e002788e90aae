# SPDX-License-Identifier: Apache-2.0
"""What a sweep of one optimizer does: from the task's [sweep] table, or fine-tuning's presets, and the
command line."""

import dataclasses
import difflib
import hashlib
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rode._command import BadUsage, Failed
from rode.sweep.space import Space, changed, read_space

FINETUNE = "finetune"  # in place of a task
RULES = ("final-validation-loss", "best-validation-loss", "mean-training-loss")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")  # it names a folder too
_FREE = ("--threads", "--device")  # where a trial runs, not what it is


@dataclass(frozen=True)
class Plan:
    task: str  # a name, the path of a task's file, or "finetune"
    optimizer: str
    space: Space
    trials: int
    steps: int
    eval_interval: int  # in steps; 0: the task's
    select: str  # one of RULES
    last_steps: int  # of the mean
    seed: int  # of the proposals and of every trial
    protocol: str = ""  # digest of the task's model, data, protocol and of the optimizer's options
    trial_options: str = ""  # what follows -- and is part of the study, as a shell's words

    def identity(self) -> dict[str, Any]:
        """What all trials of a study share. More trials may be asked for later."""
        out = dataclasses.asdict(self)
        del out["trials"]
        return {**out, "space": self.space.described()}


@dataclass(frozen=True)
class Wishes:
    """Of the command line; 0 and empty: as the task says."""

    trials: int = 0
    steps: int = 0
    eval_interval: int = 0
    select: str = ""
    last_steps: int = 0
    seed: int = 11
    ranges: tuple[str, ...] = ()
    ties: tuple[str, ...] = ()
    fixed: tuple[str, ...] = ()


def shared_options(more: Sequence[str]) -> str:
    """Those of the arguments after -- that all trials of a study must share."""
    kept, words = [], iter(more)
    for word in words:
        if word in _FREE:
            next(words, None)  # its value
        elif word.partition("=")[0] not in _FREE:
            kept.append(word)
    return shlex.join(kept)


def told_by(words: list[str], what: str) -> Any:
    """The JSON that a command prints."""
    try:
        done = subprocess.run(words, capture_output=True, text=True)
    except OSError as error:
        raise Failed(
            f"[sweep] cannot run '{words[0]}' ({error.strerror}); expected {what}; give its path "
            "with --rode, or in RODE_BIN"
        ) from None
    if done.returncode == 2:
        raise BadUsage(_without_prefix(done.stderr))
    if done.returncode != 0:
        raise Failed(_without_prefix(done.stderr))
    return json.loads(done.stdout)


def _without_prefix(text: str) -> str:
    line = next((x for x in text.splitlines() if x.startswith("rode: error: ")), text.strip())
    return line.removeprefix("rode: error: ")


def task_table(rode: str, task: str) -> dict[str, Any]:
    """The task as `rode tasks` has read and checked it."""
    return dict(told_by([rode, "tasks", task, "--json"], "the program rode, built with the lab"))


def finetune_table(presets: dict[str, Any]) -> dict[str, Any]:
    """Fine-tuning's presets in the form of a task."""
    rows = presets["optimizers"]
    spaces = {
        name: {**row["search"], **({"lr_rest": "lr"} if row.get("same_rate") else {})}
        for name, row in rows.items()
    }
    sweep = presets["sweep"]
    table = {"trials": sweep["trials"], "steps": sweep["steps"], "select": RULES[1]}
    return {
        "name": "finetune",
        "optimizers": [{"name": name} for name in rows],
        "sweep": {**table, "spaces": spaces},
    }


def table_of(rode: str, task: str | None) -> dict[str, Any]:
    """Of a task, or of fine-tuning where none is named."""
    if task is not None:
        return task_table(rode, task)
    words = [sys.executable, "-m", "rode", "finetune", "--presets"]
    return finetune_table(told_by(words, "Python"))


def optimizers_of(table: dict[str, Any], asked: str) -> list[str]:
    if asked:
        names = [name for name in asked.split(",") if name]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice or not names:
            raise BadUsage(f"[--optimizers] '{asked}'; expected names, each once")
        return names
    names = list(table.get("sweep", {}).get("spaces", {}))
    if not names:
        raise BadUsage(
            f"[sweep] task '{table['name']}' has no [sweep] table; give --optimizers, --space, "
            "--trials and --steps, or add the table to a file of the task (rode tasks "
            f"{table['name']} --toml)"
        )
    return names


def make_plan(
    task: str, table: dict[str, Any], optimizer: str, wishes: Wishes, more: Sequence[str] = ()
) -> Plan:
    """`more`: the arguments after --."""
    if not _NAME.fullmatch(optimizer):
        raise BadUsage(
            f"[--optimizers] '{optimizer}'; expected a name of letters, digits and dashes, since "
            "a folder gets this name; see rode optimizers"
        )
    sweep = table.get("sweep", {})
    spaces = sweep.get("spaces", {})
    known = {entry["name"] for entry in table["optimizers"]}
    if optimizer not in spaces and optimizer not in known and not wishes.ranges:
        near = difflib.get_close_matches(optimizer, sorted(known), 1, 0)
        hint = f"did you mean '{near[0]}'?" if near else "see rode tasks"
        raise BadUsage(f"[sweep] task '{table['name']}' has no optimizer '{optimizer}'; {hint}")
    space = changed(
        read_space(spaces.get(optimizer, {})),
        list(wishes.ranges),
        list(wishes.ties),
        list(wishes.fixed),
    )
    if not space.ranges:
        has = f"it has {', '.join(spaces)}; " if spaces else ""
        raise BadUsage(
            f"[sweep] task '{table['name']}' has no search space for '{optimizer}'; {has}add one "
            "with --space KEY=LOW:HIGH"
        )
    select = wishes.select or sweep.get("select", RULES[0])
    last = (wishes.last_steps or sweep.get("last_steps", 0)) if select == RULES[2] else 0
    plan = Plan(
        task=task,
        optimizer=optimizer,
        space=space,
        trials=wishes.trials or sweep.get("trials", 0),
        steps=wishes.steps or sweep.get("steps", 0),
        eval_interval=wishes.eval_interval or sweep.get("eval_interval", 0),
        select=select,
        last_steps=last,
        seed=wishes.seed,
        protocol=_digest(table, optimizer),
        trial_options=shared_options(more),
    )
    return _checked(plan, table)


def _digest(table: dict[str, Any], optimizer: str) -> str:
    """So that a study does not continue after the file of its task was edited."""
    entries = [entry for entry in table["optimizers"] if entry["name"] == optimizer]
    told = [table.get(key) for key in ("model", "data", "train")]
    settings = [[entry.get("optimizer"), entry.get("settings")] for entry in entries]
    text = json.dumps([told, settings], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _checked(plan: Plan, table: dict[str, Any]) -> Plan:
    for flag, value in (("--trials", plan.trials), ("--steps", plan.steps)):
        if not value:
            raise BadUsage(f"[sweep] task '{table['name']}' has no [sweep] table; give {flag}")
    if plan.task == FINETUNE and plan.select != RULES[1]:
        raise BadUsage(
            f"[--select] '{plan.select}' with --finetune; expected {RULES[1]}, the only loss in "
            "the result of fine-tuning; leave --select out"
        )
    if plan.select == RULES[2] and not 0 < plan.last_steps <= plan.steps:
        raise BadUsage(
            f"[sweep] --last-steps {plan.last_steps} with trials of {plan.steps} steps; expected "
            f"1 to {plan.steps}; set --last-steps"
        )
    if plan.eval_interval > plan.steps:  # --steps below the task's sweep
        plan = dataclasses.replace(plan, eval_interval=plan.steps)
    if plan.eval_interval and "epochs" in table.get("train", {}):
        raise BadUsage("[--eval-interval] is in steps, but the task's is in epochs; leave it out")
    return plan
