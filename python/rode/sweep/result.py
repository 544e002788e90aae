# SPDX-License-Identifier: Apache-2.0
"""What a sweep leaves: its trials as JSON lines, the best of each optimizer, and a task's file with them."""

import json
import pathlib
import re
import subprocess
from typing import Any

from rode._command import Failed, read_json, write_json, write_whole
from rode.sweep.plan import Plan
from rode.sweep.propose import FINISHED, Record, best_of

BEST = "best.json"
TRIALS = "trials.jsonl"


def trial_line(plan: Plan, record: Record) -> dict[str, Any]:
    """JSON has no inf: a diverged trial has no value."""
    return {
        "task": plan.task,
        "optimizer": plan.optimizer,
        "number": record.number,
        "seed": plan.seed,
        "length": plan.steps,
        "options": plan.space.settings(record.values),
        "status": record.status,
        "select": plan.select,
        "value": record.value if record.status == FINISHED else None,
        **{key: value for key, value in record.details.items() if key != "status"},
    }


def write_trials(path: pathlib.Path, plan: Plan, history: list[Record]) -> None:
    lines = [json.dumps(trial_line(plan, record)) for record in history if record.ended]
    write_whole(path, "".join(line + "\n" for line in lines))


def summary(plan: Plan, history: list[Record]) -> dict[str, Any]:
    ended = [record for record in history if record.ended]
    best = best_of(ended)
    return {
        "task": plan.task,
        "optimizer": plan.optimizer,
        "trials": len(ended),
        "diverged": sum(record.status != FINISHED for record in ended),
        "steps": plan.steps,
        "seed": plan.seed,
        "select": plan.select,
        "space": plan.space.described(),
        "trial_options": plan.trial_options,
        "best": None
        if best is None
        else {
            "number": best.number,
            "value": best.value,
            "options": plan.space.settings(best.values),
        },
    }


def write_best(folder: pathlib.Path, told: dict[str, Any]) -> None:
    write_json(folder / BEST, told)


def source_text(told: dict[str, Any], log: pathlib.Path) -> str:
    with_options = f", {told['trial_options']}" if told.get("trial_options") else ""
    return f"best of {told['trials']} trials on seed {told['seed']}, {log}{with_options}"


def _toml_value(text: str) -> str:
    plain = re.fullmatch(r"true|false|[+-]?\d+(\.\d+)?([eE][+-]?\d+)?", text)
    return text if plain else json.dumps(text, ensure_ascii=False)


def changed_task(text: str, name: str, options: dict[str, str], source: str) -> str:
    """A task's text as `rode tasks --toml` prints it, one key per line, with other options of an
    optimizer."""
    lines = text.splitlines()
    headers = (f"[optimizers.{name}]", f"[optimizers.{json.dumps(name)}]")
    start = next((i for i, line in enumerate(lines) if line in headers), None)
    new = {**{key: _toml_value(text) for key, text in options.items()}}
    new["source"] = json.dumps(source, ensure_ascii=False)
    added = [f"{key} = {value}" for key, value in new.items()]
    if start is None:  # an optimizer of the engine that the task does not name
        key = headers[1] if re.search(r"[.+]", name) else headers[0]
        return "\n".join([*lines, "", key, *added]) + "\n"
    end = next(
        (i for i in range(start + 1, len(lines)) if lines[i].startswith("[")),
        len(lines),
    )
    kept = [line for line in lines[start + 1 : end] if line and line.partition(" = ")[0] not in new]
    return "\n".join([*lines[: start + 1], *kept, *added, "", *lines[end:]]).rstrip("\n") + "\n"


def write_task(rode: str, task: str, folder: pathlib.Path) -> pathlib.Path | None:
    """The task with the best options of all optimizers whose sweeps of it are in the folder."""
    done = subprocess.run([rode, "tasks", task, "--toml"], capture_output=True, text=True)
    if done.returncode != 0:
        raise Failed(f"[sweep] rode tasks {task} --toml: {done.stderr.strip()}")
    text, any_best = done.stdout, False
    for path in sorted(folder.glob(f"*/{BEST}")):
        told = read_json(path, "sweep")
        if told["best"] is not None and told["task"] == task:
            # Values of the task, such as train.batch=16, are no options of an optimizer.
            options = told["best"]["options"]
            others = {key: options[key] for key in options if "." in key}
            own = {key: options[key] for key in options if key not in others}
            source = source_text(told, path.with_name(TRIALS))
            source += "".join(f", {key}={value}" for key, value in others.items())
            text = changed_task(text, told["optimizer"], own, source)
            any_best = True
    if not any_best:
        return None
    out = folder / f"{pathlib.Path(task).stem}-swept.toml"
    write_whole(out, text)
    checked = subprocess.run([rode, "tasks", str(out)], capture_output=True, text=True)
    if checked.returncode != 0:
        raise Failed(f"[sweep] '{out}' cannot be read as a task: {checked.stderr.strip()}")
    return out
