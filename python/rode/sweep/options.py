# SPDX-License-Identifier: Apache-2.0
"""The options of `rode sweep`, `rode sweep ask`, `tell` and `best`."""

import argparse
import os
import pathlib
import shutil
from typing import Any

from rode import _command
from rode._command import BadUsage, Failed
from rode.sweep.plan import RULES, Plan, Wishes
from rode.sweep.propose import SAMPLERS
from rode.sweep.runner import KEEP
from rode.sweep.space import Values

_RUN_EXAMPLES = """\
  rode sweep --task tiny-lm --optimizers rode,adamw --workers 2 -- --threads 1
  rode sweep --task gpt2 -- --data /data --device cuda     every optimizer of the paper's sweep
  rode sweep --task wiki-114m --optimizers rode --space lr=1e-4:1e-2 --trials 20 --steps 300
  rode sweep --finetune --optimizers rode -- --model Qwen3.5-9B --data gsm8k_train.jsonl
  rode train --task runs/sweep-tiny-lm/tiny-lm-swept.toml --optimizer rode    what came out
The same command continues a sweep that was stopped. optuna-dashboard sqlite:///OUT/sweep.db shows it.
Without Optuna: rode sweep ask, tell, best (each has --help).
"""
_ASK_EXAMPLES = """\
  rode sweep ask --study s.jsonl --task tiny-lm --optimizers rode --count 4      begins it
  rode sweep ask --study s.jsonl                                                 the next trial
"""
_TELL_EXAMPLES = """\
  rode sweep tell --study s.jsonl --trial 0 --value 3.21
  rode sweep tell --study s.jsonl --trial 1 --value diverged
  rode sweep tell --study s.jsonl --trial 2 --run runs/trial-2     by the study's rule
"""


def _whole(least: int) -> Any:
    def read(text: str) -> int:
        if text.isascii() and text.isdigit() and int(text) >= least:
            return int(text)
        raise argparse.ArgumentTypeError(
            f"expected a whole number of at least {least}, got '{text}'"
        )

    return read


def _add_plan(out: argparse.ArgumentParser, required: bool) -> None:
    add = out.add_argument
    what = out.add_mutually_exclusive_group(required=required)
    what.add_argument("--task", metavar="TASK", help="of `rode tasks`, or the path of a .toml file")
    what.add_argument("--finetune", action="store_true", help="sweep `rode finetune`, no task")
    add(
        "--trials",
        type=_whole(1),
        default=0,
        metavar="N",
        help="per optimizer (the task's)",
    )
    add(
        "--steps",
        type=_whole(1),
        default=0,
        metavar="N",
        help="of a trial (the task's)",
    )
    add(
        "--eval-interval",
        type=_whole(1),
        default=0,
        metavar="N",
        help="in steps (the task's)",
    )
    add(
        "--select",
        default="",
        choices=RULES,
        help="what is lowest for the best (the task's)",
    )
    add(
        "--last-steps",
        type=_whole(1),
        default=0,
        metavar="N",
        help="of mean-training-loss",
    )
    add(
        "--space",
        action="append",
        default=[],
        metavar="KEY=LOW:HIGH",
        help="a log-uniform range",
    )
    add(
        "--tie",
        action="append",
        default=[],
        metavar="KEY=OTHER",
        help="KEY takes OTHER's value",
    )
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="a fixed option")
    add(
        "--seed",
        type=_whole(0),
        default=11,
        metavar="S",
        help="of proposals and trials (11)",
    )
    add(
        "--enqueue",
        type=pathlib.Path,
        metavar="FILE",
        help="candidates to try first, as JSON",
    )
    add("--rode", metavar="PATH", help="the program (RODE_BIN, else rode in PATH)")


def run_parser() -> argparse.ArgumentParser:
    out = _command.parser(
        "sweep",
        "Search an optimizer's rates: Optuna (TPE) over the task's [sweep] table (docs/sweep.md).\n"
        "What follows -- is given to every trial.",
        _RUN_EXAMPLES,
    )
    _add_plan(out, required=True)
    add = out.add_argument
    add(
        "--optimizers",
        default="",
        metavar="A,B",
        help="default: all that have a search space",
    )
    add("--out", type=pathlib.Path, metavar="DIR", help="folder (runs/sweep-TASK)")
    add("--workers", type=_whole(1), default=1, metavar="N", help="trials at a time (1)")
    add(
        "--keep",
        default="logs",
        choices=KEEP,
        help="what stays of a trial's folder (logs)",
    )
    add("--quiet", action="store_true", help="show no progress")
    add("--json", action="store_true", help="print the result as JSON")
    return out


def ask_parser() -> argparse.ArgumentParser:
    out = _command.parser(
        "sweep ask",
        "The next trials of a study in a file, as JSON lines with their commands. Needs no Optuna.\n"
        "What follows -- is part of every command.",
        _ASK_EXAMPLES,
    )
    add = out.add_argument
    add("--study", type=pathlib.Path, required=True, metavar="FILE", help="JSON lines")
    add("--count", type=_whole(1), default=1, metavar="N", help="how many trials (1)")
    add("--sampler", choices=SAMPLERS, help="tpe where Optuna is installed, else random")
    add("--optimizers", default="", metavar="NAME", help="to begin a study: one name")
    _add_plan(out, required=False)
    return out


def tell_parser() -> argparse.ArgumentParser:
    out = _command.parser(
        "sweep tell", "Adds a trial's value to a study in a file.", _TELL_EXAMPLES
    )
    add = out.add_argument
    add("--study", type=pathlib.Path, required=True, metavar="FILE", help="JSON lines")
    add("--trial", type=_whole(0), required=True, metavar="N", help="its number")
    value = out.add_mutually_exclusive_group(required=True)
    value.add_argument("--value", metavar="V", help="what is minimized, or 'diverged'")
    value.add_argument("--run", type=pathlib.Path, metavar="DIR", help="the folder of its run")
    add("--json", action="store_true", help="print the best so far as JSON")
    return out


def best_parser() -> argparse.ArgumentParser:
    out = _command.parser(
        "sweep best",
        "The best trial of a study in a file.",
        "  rode sweep best --study s.jsonl --json\n",
    )
    out.add_argument("--study", type=pathlib.Path, required=True, metavar="FILE", help="JSON lines")
    out.add_argument("--json", action="store_true", help="print it as JSON")
    return out


def wishes_of(given: argparse.Namespace) -> Wishes:
    return Wishes(
        trials=given.trials,
        steps=given.steps,
        eval_interval=given.eval_interval,
        select=given.select,
        last_steps=given.last_steps,
        seed=given.seed,
        ranges=tuple(given.space),
        ties=tuple(given.tie),
        fixed=tuple(given.set),
    )


def program_of(given: argparse.Namespace) -> str:
    found = given.rode or os.environ.get("RODE_BIN") or shutil.which("rode")
    if not found:
        raise Failed(
            "[sweep] the program rode is not in PATH, and trials need it; give its path with "
            "--rode, or in RODE_BIN; make lab builds one that trains"
        )
    return str(found)


def candidates_of(path: pathlib.Path | None, plan: Plan) -> list[Values]:
    """A list of objects, or such lists by the optimizers' names."""
    if path is None:
        return []
    told = _command.read_json(path, "--enqueue")
    points = told.get(plan.optimizer, []) if isinstance(told, dict) else told
    good = isinstance(points, list) and all(
        isinstance(point, dict)
        and point
        and all(isinstance(v, int | float) and not isinstance(v, bool) for v in point.values())
        for point in points
    )
    if not good:
        raise BadUsage(
            f"[--enqueue] '{path}': expected a list of objects such as {{\"lr\": 1e-3}}, or an "
            f"object of such lists by optimizer; correct what it has for '{plan.optimizer}'"
        )
    out = [{key: float(value) for key, value in point.items()} for point in points]
    for i, point in enumerate(out):
        plan.space.require_inside(point, f"candidate {i} of '{path}' for {plan.optimizer}")
    return out
