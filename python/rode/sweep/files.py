# SPDX-License-Identifier: Apache-2.0
"""A study as one file of JSON lines, for machines without Optuna: ask for trials, run them anywhere, tell
their values.

The first line describes the study; then come lines of kind "trial" and "value". Lines are only ever
appended, each at once."""

import dataclasses
import json
import math
import os
import pathlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rode._command import BadUsage, Failed, reason
from rode.sweep import locks
from rode.sweep.outcome import Outcome
from rode.sweep.plan import Plan
from rode.sweep.propose import DIVERGED, FINISHED, Record
from rode.sweep.space import Values, read_space
from rode.sweep.store import require_same


class FileStudy:
    """Held by one process at a time, from reading to appending."""

    def __init__(self, path: pathlib.Path, plan: Plan | None, candidates: list[Values]) -> None:
        """`plan`: starts the study, or must be the one it was started with; None: the file's."""
        self.path = path
        lines = self._lines()
        if not lines:
            if plan is None:
                raise BadUsage(
                    f"[sweep] '{path}' holds no study; start one with --task and --optimizers"
                )
            head = {"kind": "study", "trials": plan.trials, **plan.identity()}
            lines = [{**head, "candidates": candidates}]
            self._append(lines[0])
        elif plan is not None:
            asked = {**plan.identity(), "candidates": candidates}
            require_same(lines[0], asked, f"the study '{path}'")
        self.plan = _plan_of(lines[0], path)
        self.candidates: list[Values] = lines[0]["candidates"]
        self.records: list[Record] = []
        for number, line in enumerate(lines[1:], 2):
            try:
                self._take(line)
            except (KeyError, IndexError, TypeError) as error:
                raise Failed(
                    f"[sweep] '{path}' line {number}: {error!r}; expected a line of rode sweep "
                    "ask or tell; restore the file, or start another one"
                ) from None

    def _lines(self) -> list[dict[str, Any]]:
        """A line without its end was cut off by a kill: it does not count."""
        try:
            data = self.path.read_bytes() if self.path.exists() else b""
            whole = data[: data.rfind(b"\n") + 1]
            if len(whole) < len(data):
                os.truncate(self.path, len(whole))
            lines = [json.loads(line) for line in whole.splitlines()]
        except (OSError, ValueError) as error:
            raise Failed(
                f"[sweep] '{self.path}' cannot be read: {reason(error)}; expected JSON lines of "
                "rode sweep ask; restore the file, or start another one"
            ) from None
        if lines and not (isinstance(lines[0], dict) and lines[0].get("kind") == "study"):
            raise Failed(
                f"[sweep] '{self.path}' does not begin with a study; expected a file of rode "
                "sweep ask; give another file"
            )
        return lines

    def _take(self, line: dict[str, Any]) -> None:
        number = line["number"]
        if line["kind"] == "trial":
            self.records.append(Record(number, line["values"]))
        else:
            value = math.inf if line["value"] is None else line["value"]
            told = Record(number, self.records[number].values, line["status"], value)
            self.records[number] = told

    def _append(self, line: dict[str, Any]) -> None:
        data = (json.dumps(line) + "\n").encode()
        try:
            handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                if os.write(handle, data) != len(data):
                    raise OSError(0, "the line was only partly written")
                os.fsync(handle)
            finally:
                os.close(handle)
        except OSError as error:
            raise Failed(
                f"[sweep] '{self.path}': {reason(error)}; earlier lines are kept; free space or "
                "choose another file"
            ) from None

    def add(self, values: Values, sampler: str) -> Record:
        record = Record(len(self.records), values)
        line = {
            "kind": "trial",
            "number": record.number,
            "values": values,
            "by": sampler,
        }
        self._append(line)
        self.records.append(record)
        return record

    def tell(self, number: int, outcome: Outcome) -> bool:
        """False if it had the same value already."""
        if not 0 <= number < len(self.records):
            asked = len(self.records)
            expected = f"expected 0 to {asked - 1}" if asked else "call rode sweep ask first"
            raise BadUsage(
                f"[--trial] {number}; {expected}: rode sweep ask has given {asked} trials"
            )
        before = self.records[number]
        if before.ended:
            if (before.status, before.value) == (outcome.status, outcome.value):
                return False
            raise BadUsage(
                f"[--trial] {number} has the value {before.value} already, but now "
                f"{outcome.value} was given; expected one value per trial; check the number"
            )
        value = outcome.value if outcome.status == FINISHED else None
        line = {
            "kind": "value",
            "number": number,
            "status": outcome.status,
            "value": value,
        }
        self._append(line)
        self._take(line)
        return True


def _plan_of(head: dict[str, Any], path: pathlib.Path) -> Plan:
    try:
        space = read_space(head["space"])
        names = [entry.name for entry in dataclasses.fields(Plan) if entry.name != "space"]
        return Plan(space=space, **{name: head[name] for name in names})
    except (KeyError, TypeError) as error:
        raise Failed(
            f"[sweep] '{path}' line 1: {error}; expected the study of rode sweep ask; restore "
            "the file, or start another one"
        ) from None


@contextmanager
def opened(
    path: pathlib.Path, plan: Plan | None = None, candidates: list[Values] | None = None
) -> Iterator[FileStudy]:
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = locks.take(path.with_name(f".{path.name}.lock"), wait=True)
    assert lock is not None
    with lock:
        yield FileStudy(path, plan, candidates or [])


def told_outcome(text: str) -> Outcome:
    """The value of the command line; "diverged" and inf are the worst."""
    if text.lower() == DIVERGED:
        return Outcome(DIVERGED, math.inf)
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if math.isfinite(value):
        return Outcome(FINISHED, value)
    if value == math.inf:
        return Outcome(DIVERGED, math.inf)
    raise BadUsage(f"[--value] '{text}'; expected a number, or 'diverged'")
