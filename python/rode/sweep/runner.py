# SPDX-License-Identifier: Apache-2.0
"""Runs the trials of one study: children that are polled, at most `workers` at a time.

Trials of a process that was killed are taken up first, under their numbers and with their values."""

import contextlib
import pathlib
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, Any

from rode._command import note
from rode.sweep import locks
from rode.sweep.outcome import Outcome, read_outcome
from rode.sweep.plan import Plan
from rode.sweep.propose import Record, propose
from rode.sweep.space import Values
from rode.sweep.store import Store
from rode.sweep.trial import Command, Process

KEEP = ("all", "logs", "none")
_LOGS = {"run.json", "log.jsonl", "times.jsonl", "result.json"}
_POLL_SECONDS = 0.02
_OTHERS_SECONDS = 0.5


@dataclass
class Running:
    record: Record
    lock: IO[Any]  # of this process
    process: Process | None  # None: its result was there already


class Runner:
    def __init__(
        self,
        plan: Plan,
        candidates: list[Values],
        store: Store,
        command: Command,
        folder: pathlib.Path,
        workers: int,
        keep: str,
        told: Callable[[list[Record], Record], None],
    ) -> None:
        self.plan, self.candidates, self.store = plan, candidates, store
        self.command, self.folder, self.workers = command, folder, workers
        self.keep, self.told = keep, told
        self.own = folder / ".sweep"
        self.own.mkdir(parents=True, exist_ok=True)
        self.running: list[Running] = []

    def trial_folder(self, number: int) -> pathlib.Path:
        return self.folder / f"trial-{number:04d}"

    def lock_path(self, number: int) -> pathlib.Path:
        return self.own / f"{number:04d}.lock"

    @contextlib.contextmanager
    def study_lock(self) -> Iterator[None]:
        with contextlib.closing(locks.take(self.own / "study.lock", wait=True)):  # type: ignore[type-var]
            yield

    def run(self) -> list[Record]:
        """All trials of the plan, those of earlier processes included."""
        for record in self.store.history():
            if record.ended:
                self.clean(record.number)
        waiting = False
        try:
            while True:
                while len(self.running) < self.workers and self.start_next():
                    pass
                if self.running:
                    self.poll()
                    continue
                history = self.store.history()
                if all(record.ended for record in history):
                    return history
                if not waiting:
                    note("the last trials are running in another process; waiting for them")
                    waiting = True
                time.sleep(_OTHERS_SECONDS)
        finally:
            self.stop()

    def start_next(self) -> bool:
        """One more trial, if there is one to run."""
        with self.study_lock():
            found = self.claim()
        if found is None:
            return False
        record, lock = found
        folder = self.trial_folder(record.number)
        # The child of a sweep that was killed ends on its own; until then the folder is its.
        child_lock = locks.take(self.own / f"{record.number:04d}.child", wait=True)
        assert child_lock is not None
        with child_lock:
            process = None
            if read_outcome(folder, self.plan) is None:
                words = self.command.line(self.plan, record.values, folder)
                process = Process(words, self.own / f"{record.number:04d}.err", child_lock)
        self.running.append(Running(record, lock, process))
        return True

    def claim(self) -> tuple[Record, IO[Any]] | None:
        """A trial and its lock: one that no process runs any more, or a new one."""
        history = self.store.history()
        mine = {entry.record.number for entry in self.running}
        for record in history:
            if record.ended or record.number in mine:
                continue
            lock = locks.take(self.lock_path(record.number), wait=False)
            if lock is not None:
                return record, lock
        if len(history) >= self.plan.trials:
            return None
        values = propose(self.plan.space, self.plan.seed, history, self.candidates, "tpe")
        # Taken before the trial can be seen.
        lock = locks.take(self.lock_path(len(history)), wait=True)
        assert lock is not None
        return Record(self.store.add(values), values), lock

    def poll(self) -> None:
        for entry in list(self.running):
            if entry.process is not None and not entry.process.ended():
                continue
            folder = self.trial_folder(entry.record.number)
            outcome = (
                entry.process.outcome(self.plan, folder)
                if entry.process is not None
                else read_outcome(folder, self.plan)
            )
            assert outcome is not None
            self.finish(entry, outcome)
        time.sleep(_POLL_SECONDS)

    def finish(self, entry: Running, outcome: Outcome) -> None:
        number = entry.record.number
        with self.study_lock():
            self.store.finish(number, outcome)
            history = self.store.history()
            self.told(history, history[number])
        self.running.remove(entry)
        entry.lock.close()
        self.clean(number)

    def clean(self, number: int) -> None:
        """What a trial leaves, once its value is stored."""
        for name in ("lock", "child", "err"):
            (self.own / f"{number:04d}.{name}").unlink(missing_ok=True)
        folder = self.trial_folder(number)
        if self.keep == "none":
            shutil.rmtree(folder, ignore_errors=True)
        elif self.keep == "logs" and folder.exists():
            for path in folder.iterdir():
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path, ignore_errors=True)
                elif path.name not in _LOGS:
                    path.unlink(missing_ok=True)

    def stop(self) -> None:
        """Children save and end; the next process continues their trials."""
        for entry in self.running:
            if entry.process is not None:
                entry.process.stop()
        for entry in self.running:
            if entry.process is not None:
                entry.process.wait()
            entry.lock.close()
        self.running.clear()
