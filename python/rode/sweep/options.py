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
    what.add_argument(
        "--task", metavar="TASK", help="name of a task (`rode tasks`), or the path of a .toml file"
    )
    what.add_argument(
        "--finetune", action="store_true", help="sweep `rode finetune` instead of a task"
    )
    add(
        "--trials",
        type=_whole(1),
        default=0,
        metavar="N",
        help="number of trials per optimizer (the task's)",
    )
    add(
        "--steps",
        type=_whole(1),
        default=0,
        metavar="N",
        help="training steps per trial (the task's)",
    )
    add(
        "--eval-interval",
        type=_whole(1),
        default=0,
        metavar="N",
        help="steps between evaluations (the task's)",
    )
    add(
        "--select",
        default="",
        choices=RULES,
        help="loss by which trials are compared (the task's)",
    )
    add(
        "--last-steps",
        type=_whole(1),
        default=0,
        metavar="N",
        help="number of steps that mean-training-loss averages",
    )
    add(
        "--space",
        action="append",
        default=[],
        metavar="KEY=LOW:HIGH",
        help="search range of an option, log-uniform",
    )
    add(
        "--tie",
        action="append",
        default=[],
        metavar="KEY=OTHER",
        help="give KEY the value of OTHER",
    )
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="option with a fixed value")
    add(
        "--seed",
        type=_whole(0),
        default=11,
        metavar="S",
        help="seed of the proposals and the trials (11)",
    )
    add(
        "--enqueue",
        type=pathlib.Path,
        metavar="FILE",
        help="JSON file of candidates to try first",
    )
    add("--rode", metavar="PATH", help="the rode program (RODE_BIN, else rode in PATH)")


def run_parser() -> argparse.ArgumentParser:
    out = _command.parser(
        "sweep",
        "Search an optimizer's rates: Optuna (TPE) over the task's [sweep] table "
        "(docs/sweep.md).\nArguments after -- are passed to every trial.",
        _RUN_EXAMPLES,
    )
    _add_plan(out, required=True)
    add = out.add_argument
    add(
        "--optimizers",
        default="",
        metavar="A,B",
        help="optimizers (default: all that have a search space)",
    )
    add("--out", type=pathlib.Path, metavar="DIR", help="folder of the sweep (runs/sweep-TASK)")
    add("--workers", type=_whole(1), default=1, metavar="N", help="number of trials at a time (1)")
    add(
        "--keep",
        default="logs",
        choices=KEEP,
        help="what to keep of a trial's folder (logs)",
    )
    add("--quiet", action="store_true", help="show no progress")
    add("--json", action="store_true", help="print the result as JSON")
    return out


def _add_study(out: argparse.ArgumentParser) -> None:
    out.add_argument(
        "--study",
        type=pathlib.Path,
        required=True,
        metavar="FILE",
        help="file of the study, in JSON lines",
    )


def ask_parser() -> argparse.ArgumentParser:
    out = _command.parser(
        "sweep ask",
        "Print the next trials of a study in a file, as JSON lines with "
        "their commands. Needs no Optuna.\nArguments after -- become part of every command.",
        _ASK_EXAMPLES,
    )
    add = out.add_argument
    _add_study(out)
    add("--count", type=_whole(1), default=1, metavar="N", help="number of trials (1)")
    add(
        "--sampler",
        choices=SAMPLERS,
        help="how trials are proposed (tpe if Optuna is installed, else random)",
    )
    add(
        "--optimizers",
        default="",
        metavar="NAME",
        help="name of the study's optimizer, when starting a study",
    )
    _add_plan(out, required=False)
    return out


def tell_parser() -> argparse.ArgumentParser:
    out = _command.parser(
        "sweep tell", "Add the result of a trial to a study in a file.", _TELL_EXAMPLES
    )
    add = out.add_argument
    _add_study(out)
    add("--trial", type=_whole(0), required=True, metavar="N", help="number of the trial")
    value = out.add_mutually_exclusive_group(required=True)
    value.add_argument("--value", metavar="V", help="loss of the trial, or 'diverged'")
    value.add_argument("--run", type=pathlib.Path, metavar="DIR", help="folder of the trial's run")
    add("--json", action="store_true", help="print the best trial so far as JSON")
    return out


def best_parser() -> argparse.ArgumentParser:
    out = _command.parser(
        "sweep best",
        "Print the best trial of a study in a file.",
        "  rode sweep best --study s.jsonl --json\n",
    )
    out.add_argument(
        "--study",
        type=pathlib.Path,
        required=True,
        metavar="FILE",
        help="file of the study, in JSON lines",
    )
    out.add_argument("--json", action="store_true", help="print the trial as JSON")
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
            "[sweep] the program rode, which runs the trials, is not in PATH; give its path "
            "with --rode, or in RODE_BIN; 'make lab' builds one that trains"
        )
    return str(found)


def candidates_of(path: pathlib.Path | None, plan: Plan) -> list[Values]:
    """A list of objects, or an object with such a list for each optimizer."""
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
            "object with such a list for each optimizer; correct the entry for "
            f"'{plan.optimizer}'"
        )
    out = [{key: float(value) for key, value in point.items()} for point in points]
    for i, point in enumerate(out):
        plan.space.require_inside(point, f"candidate {i} of '{path}' for {plan.optimizer}")
    return out
