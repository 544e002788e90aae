# SPDX-License-Identifier: Apache-2.0
"""`python -m rode sweep`: the order in which a sweep is planned, run and written back."""

import argparse
import contextlib
import json
import pathlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

from rode import _command
from rode._command import Failed
from rode.sweep import ask_tell, locks, options, result
from rode.sweep.plan import FINETUNE, Plan, make_plan, optimizers_of, table_of
from rode.sweep.progress import Progress, table_text
from rode.sweep.propose import Record, require_optuna
from rode.sweep.runner import Runner
from rode.sweep.store import Store
from rode.sweep.trial import Command, finetune_command, train_command

_STORAGE = "sweep.db"


class _Stopped(Exception):
    """By a signal."""


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    """SIGINT and SIGTERM let the trials save and end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: Any) -> None:
        raise _Stopped

    before = {kind: signal.signal(kind, stop) for kind in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


def _sweep_one(
    given: argparse.Namespace, plan: Plan, command: Command, out: pathlib.Path, later: int
) -> dict[str, Any]:
    folder = out / plan.optimizer
    candidates = options.candidates_of(given.enqueue, plan)
    progress = Progress(plan, later, given.quiet)

    def told(history: list[Record], record: Record) -> None:
        result.write_trials(folder / result.TRIALS, plan, history)
        progress.show(history, record)

    # Two processes that begin at once would both make its tables.
    lock = locks.take(out / ".lock", wait=True)
    assert lock is not None
    with lock:
        store = Store(out / _STORAGE, plan, candidates)
    folder.mkdir(parents=True, exist_ok=True)
    runner = Runner(plan, candidates, store, command, folder, given.workers, given.keep, told)
    history = runner.run()
    result.write_trials(folder / result.TRIALS, plan, history)
    summary = result.summary(plan, history)
    result.write_best(folder, summary)
    return summary


def _run(arguments: list[str]) -> int:
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    given = options.run_parser().parse_args(arguments[:cut])
    more = arguments[cut + 1 :]
    require_optuna("rode sweep ask and tell work without it")
    rode = "" if given.finetune else options.program_of(given)
    table = table_of(rode, given.task)
    names = optimizers_of(table, given.optimizers)
    task = FINETUNE if given.finetune else given.task
    plans = [make_plan(task, table, name, options.wishes_of(given), more) for name in names]
    for plan in plans:  # before any is run
        options.candidates_of(given.enqueue, plan)
    command = (
        finetune_command(more, given.keep == "all") if given.finetune else train_command(rode, more)
    )
    out: pathlib.Path = given.out or pathlib.Path("runs") / f"sweep-{table['name']}"
    out.mkdir(parents=True, exist_ok=True)
    try:
        with _signals():
            summaries = [
                _sweep_one(given, plan, command, out, sum(p.trials for p in plans[i + 1 :]))
                for i, plan in enumerate(plans)
            ]
    except (_Stopped, KeyboardInterrupt):
        raise Failed(
            "[sweep] stopped; finished trials are kept; run the same command again to continue"
        ) from None
    written = None if given.finetune else result.write_task(rode, given.task, out)
    if given.json:
        told = {
            "sweeps": summaries,
            "task_file": None if written is None else str(written),
        }
        print(json.dumps({**told, "storage": str(out / _STORAGE)}, indent=2))
    else:
        print(table_text(summaries))
        if written is not None:
            print(f"the task with these rates: {written}")
    return _command.DONE


def main(arguments: list[str]) -> int:
    kinds = {"ask": ask_tell.ask, "tell": ask_tell.tell, "best": ask_tell.best}
    if arguments and arguments[0] in kinds:
        return _command.run(lambda: kinds[arguments[0]](arguments[1:]))
    return _command.run(lambda: _run(arguments))
