# SPDX-License-Identifier: Apache-2.0
"""The runs of bench/small_lm.py: which are done, which are next, and the file that keeps them."""

import concurrent.futures
import concurrent.futures.process
import json
import os
import pathlib
import time
from typing import Any

import small_lm_plan
from small_lm_train import work


class Refused(Exception):
    """What the user has to change; printed without a trace."""


def write(path: pathlib.Path, document: dict[str, Any]) -> None:
    """At once or not at all: a reader never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    text = json.dumps(document, indent=None, allow_nan=False, separators=(",", ":"))
    temporary.write_text(text.replace('{"optimizer"', '\n{"optimizer"') + "\n", "utf-8")
    os.replace(temporary, path)


class Study:
    """The runs of a table: those that have finished, and those still to do."""

    def __init__(self, path: pathlib.Path, config: dict[str, Any], names: list[str]) -> None:
        self.path, self.config, self.names = path, config, names
        self.records: small_lm_plan.Records = {}
        self.environment: dict[str, Any] = {}
        if path.exists():
            self._resume(json.loads(path.read_text("utf-8")))

    def _resume(self, document: dict[str, Any]) -> None:
        before = document["config"]
        for key in sorted(before.keys() | self.config.keys()):
            was, now = before.get(key), self.config.get(key)
            if was != now:
                raise Refused(
                    f"{self.path} was made with {key} {was}, not {now}; give another --out"
                )
        self.records = {small_lm_plan.run_of(r): r for r in document["runs"]}
        self.environment = document["environment"]

    def centre(self, name: str) -> float:
        moved = self.config["set"].get(name, {}).get("centre")
        return float(moved or small_lm_plan.ENTRIES[name].centre)

    def options(self, name: str) -> dict[str, Any]:
        given = self.config["set"].get(name, {})
        return {key: value for key, value in given.items() if key != "centre"}

    def missing(self) -> list[small_lm_plan.Run]:
        runs = [
            run
            for name in self.names
            for run in small_lm_plan.wanted(name, self.centre(name), self.records)
        ]
        return [run for run in runs if run not in self.records]

    def rows(self) -> list[dict[str, Any]]:
        present = {run.optimizer for run in self.records} | set(self.names)
        return [
            small_lm_plan.summarise(name, self.centre(name), self.records)
            for name in small_lm_plan.ENTRIES
            if name in present
        ]

    def save(self) -> None:
        document = {
            "config": self.config,
            "environment": self.environment,
            "summary": self.rows(),
            "runs": list(self.records.values()),
        }
        write(self.path, document)


def execute(study: Study, pool: Any, deadline: float, jobs: int) -> int:
    """Runs what is missing until nothing is or the time is over; returns how many runs failed.

    Runs are handed out one a worker, so that the plan can follow the results.
    """
    start = time.monotonic()
    active: dict[Any, small_lm_plan.Run] = {}
    failed: set[small_lm_plan.Run] = set()
    finished = sum(run.optimizer in study.names for run in study.records)
    # Five trials and the other seeds.
    total = len(study.names) * (small_lm_plan.TRIALS + len(small_lm_plan.SEEDS) - 1)
    while True:
        taken = failed | set(active.values())
        for run in study.missing():
            if len(active) >= jobs or time.monotonic() > deadline:
                break
            if run not in taken:
                active[pool.submit(work, run, study.options(run.optimizer))] = run
        if not active:
            return len(failed)
        done, _ = concurrent.futures.wait(active, return_when="FIRST_COMPLETED")
        for future in done:
            run = active.pop(future)
            finished += 1
            head = f"[{time.monotonic() - start:6.1f} s] {finished:3d}/{total} {run}: "
            error = future.exception()
            if isinstance(error, concurrent.futures.process.BrokenProcessPool):
                raise error  # a worker died: no run after it could start
            if error is not None:
                failed.add(run)
                print(f"{head}FAILED: {error}", flush=True)
                continue
            record = future.result()
            study.records[run] = record
            study.save()
            loss = record["valid_loss"]
            outcome = f"{loss:.4f}" if loss is not None else f"diverged: {record['diverged']}"
            print(f"{head}{outcome} ({record['seconds']:.1f} s)", flush=True)
