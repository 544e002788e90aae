# SPDX-License-Identifier: Apache-2.0
"""`rode sweep ask`, `tell` and `best`: a study in a file, whose trials are run elsewhere."""

import argparse
import json
import pathlib
import shlex
from typing import Any

from rode._command import DONE, BadUsage, Failed, note
from rode.sweep import options
from rode.sweep.files import FileStudy, opened, told_outcome
from rode.sweep.outcome import Outcome, read_outcome
from rode.sweep.plan import (
    FINETUNE,
    Plan,
    Wishes,
    make_plan,
    optimizers_of,
    shared_options,
    table_of,
)
from rode.sweep.progress import table_text
from rode.sweep.propose import Record, has_optuna, propose
from rode.sweep.result import summary
from rode.sweep.space import Values
from rode.sweep.store import require_same
from rode.sweep.trial import Command, finetune_command, train_command


def _begun(given: argparse.Namespace, more: list[str]) -> tuple[Plan, list[Values]]:
    rode = "" if given.finetune else options.program_of(given)
    table = table_of(rode, given.task)
    names = optimizers_of(table, given.optimizers)
    if len(names) != 1:
        raise BadUsage(
            f"[--optimizers] {', '.join(names)}; expected one: a study has one optimizer"
        )
    task = FINETUNE if given.finetune else given.task
    plan = make_plan(task, table, names[0], options.wishes_of(given), more)
    return plan, options.candidates_of(given.enqueue, plan)


def _command_of(study: FileStudy, rode: str, more: list[str]) -> Command:
    plan, now = study.plan, shared_options(more)
    if now:
        told = {"trial_options": now}
        require_same({"trial_options": plan.trial_options}, told, f"the study '{study.path}'")
    else:
        more = [*shlex.split(plan.trial_options), *more]
    return finetune_command(more, False) if plan.task == FINETUNE else train_command(rode, more)


def _trial(study: FileStudy, record: Record, command: Command) -> dict[str, Any]:
    folder = pathlib.Path(f"{study.path.stem}-trials") / f"trial-{record.number:04d}"
    return {
        "number": record.number,
        "options": study.plan.space.settings(record.values),
        "command": command.line(study.plan, record.values, folder),
    }


def ask(arguments: list[str]) -> int:
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    given = options.ask_parser().parse_args(arguments[:cut])
    sampler = given.sampler or ("tpe" if has_optuna() else "random")
    begins = given.task is not None or given.finetune
    if not begins and (options.wishes_of(given) != Wishes() or given.enqueue or given.optimizers):
        raise BadUsage(
            "[sweep ask] options that only apply when a study is started were given "
            "without --task; add --task to start a study, or leave them out"
        )
    more = arguments[cut + 1 :]
    plan, candidates = _begun(given, more) if begins else (None, [])
    rode = given.rode or "rode"
    with opened(given.study, plan, candidates) as study:
        left = study.plan.trials - len(study.records)
        if left < given.count:
            note(f"{max(left, 0)} of {study.plan.trials} trials are left")
        command = _command_of(study, rode, more)
        for _ in range(min(given.count, left)):
            values = propose(
                study.plan.space,
                study.plan.seed,
                study.records,
                study.candidates,
                sampler,
            )
            print(json.dumps(_trial(study, study.add(values, sampler), command)))
    return DONE


def _outcome(given: argparse.Namespace, plan: Plan) -> Outcome:
    if given.value is not None:
        return told_outcome(given.value)
    found = read_outcome(given.run, plan)
    if found is None:
        raise Failed(
            f"[sweep] '{given.run}' has no result; expected the folder of a run that ended; finish "
            "the run, or give --value"
        )
    return found


def _show(study: FileStudy, as_json: bool) -> None:
    told = summary(study.plan, study.records)
    print(json.dumps(told, indent=2) if as_json else table_text([told]))


def tell(arguments: list[str]) -> int:
    given = options.tell_parser().parse_args(arguments)
    with opened(given.study) as study:
        if not study.tell(given.trial, _outcome(given, study.plan)):
            note(f"trial {given.trial} has this value already")
        _show(study, given.json)
    return DONE


def best(arguments: list[str]) -> int:
    given = options.best_parser().parse_args(arguments)
    with opened(given.study) as study:
        _show(study, given.json)
    return DONE
