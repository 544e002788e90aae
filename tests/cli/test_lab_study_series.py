# SPDX-License-Identifier: Apache-2.0
"""bench/lab_study.py with a small script in place of `rode`: workers, failures, the deadline."""

import argparse
import json
import pathlib
import subprocess
import sys
import time
import types

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TOOL = ROOT / "bench" / "lab_study.py"
sys.path.insert(0, str(TOOL.parent))
import lab_study
import study_files
import study_table

# The optimizer's name says what a run does. `meets-a` and `meets-b` go on until both have begun;
# `fails` does so once `waits` has begun; `waits` goes on until it is asked to end, and leaves no
# result; `ends` does the same, but had come to its end by then.
STAND_IN = """#!{python}
import json, pathlib, signal, sys, time

words = sys.argv[2:]
given = dict(zip(words, words[1:]))
kind, folder = given["--optimizer"], pathlib.Path(given["--out"])
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
(folder / "checkpoints").mkdir(parents=True)
(folder.parent / (folder.name + ".begun")).touch()

end = time.monotonic() + 60
def until(condition):
    while not condition():
        if time.monotonic() > end:
            sys.exit(9)
        time.sleep(0.01)

def begun(pattern):
    return len(list(folder.parent.glob(pattern + "-seed1.begun")))

if kind.startswith("meets"):
    until(lambda: begun("meets-*") == 2)
if kind == "fails":
    until(lambda: begun("waits"))
if kind in ("waits", "ends"):
    until(lambda: asked)
if kind == "fails":
    sys.exit(3)
if kind == "waits":
    sys.exit(0)
task = {{"name": "small", "train": {{"steps": 6}}}}
run = {{"task": task, "optimizer": kind, "seed": int(given["--seed"]), "steps": 6, "warmup": 0}}
(folder / "run.json").write_text(json.dumps(run | {{"options": {{}}}}))
result = {{"status": "finished", "final_loss": 1.5, "weight_norm": 2.0}}
(folder / "result.json").write_text(json.dumps(result))
for name in ("log.jsonl", "times.jsonl", "more.txt"):
    (folder / name).write_text("")
"""


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "rode"
    path.write_text(STAND_IN.format(python=sys.executable))
    path.chmod(0o755)
    (tmp_path / "small.toml").write_text("[train]\nsteps = 6\n")
    return path


@pytest.fixture
def run_study(program, tmp_path):
    """Makes the runs of a study whose rows have these optimizers, one seed each."""

    def run(optimizers, *words):
        rows = [{"optimizer": name} for name in optimizers]
        study = {"task": "small.toml", "what": "a test", "seeds": [1], "steps": 6, "rows": rows}
        (tmp_path / "study.json").write_text(json.dumps(study))
        command = [sys.executable, TOOL, "run", tmp_path / "study.json", "--rode", program]
        command += ["--data", tmp_path, "--out", tmp_path / "out", "--expect", 0.01, *words]
        return subprocess.run(
            [str(word) for word in command], check=False, capture_output=True, text=True, timeout=90
        )

    return run


@pytest.fixture
def make_runs(program, tmp_path, monkeypatch):
    """The same in this process, where the clock can be another."""

    def make(optimizers, clock, **given):
        fake = types.SimpleNamespace(monotonic=clock, sleep=time.sleep)
        monkeypatch.setattr(lab_study, "time", fake)
        task = str(tmp_path / "small.toml")
        runs = [lab_study.Run(f"{name}-seed1", task, name, 1, 6) for name in optimizers]
        rest = {"out": tmp_path / "out", "rode": program, "data": tmp_path, "device": "cpu"}
        rest |= {"done": [], "workers": 2, "expect": 0.01}
        rest |= dict.fromkeys(("threads", "log_interval", "scale", "pack"))
        lab_study.make_runs(lambda out: runs, argparse.Namespace(**rest | given))

    return make


def kept(folder):
    return {path.name for path in folder.iterdir()}


def test_two_workers_run_two_at_a_time(run_study, tmp_path):
    done = run_study(["meets-a", "meets-b"], "--workers", 2)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all runs are done" in done.stdout
    assert kept(tmp_path / "out" / "meets-a-seed1") == set(study_files.KEPT)


def test_a_run_that_fails_stops_those_beside_it_and_what_is_done_is_packed(run_study, tmp_path):
    file = tmp_path / "part.tar.xz"
    done = run_study(["plain", "fails", "waits", "later"], "--workers", 2, "--pack", file)
    assert done.returncode == 1, done.stdout
    assert "fails-seed1 failed with status 3: " in done.stderr
    assert "packed 1 runs" in done.stdout and study_files.names([file]) == {"plain-seed1"}
    assert "left out: fails-seed1 waits-seed1 later-seed1" in done.stdout
    assert (tmp_path / "out" / "waits-seed1").is_dir()
    assert not (tmp_path / "out" / "later-seed1").exists()


def test_the_deadline_stops_what_runs_and_counts_what_has_come_to_its_end(
    make_runs, tmp_path, capsys
):
    def clock():  # the time is over once both have begun
        return 1000.0 if len(list((tmp_path / "out").glob("*.begun"))) == 2 else 0.0

    make_runs(["waits", "ends"], clock, budget=500)
    told = capsys.readouterr().out
    assert "ends-seed1: loss 1.5000" in told and "left out: waits-seed1\n" in told
    assert kept(tmp_path / "out" / "ends-seed1") == set(study_files.KEPT)


def test_a_run_that_has_ended_is_found_after_the_deadline():
    ended = types.SimpleNamespace(process=types.SimpleNamespace(poll=lambda: 0))
    running = types.SimpleNamespace(process=types.SimpleNamespace(poll=lambda: None))
    assert lab_study.first_ended([running, ended], deadline=0) is ended
    assert lab_study.first_ended([running], deadline=0) is None


def test_unpacking_is_part_of_the_budget(make_runs, monkeypatch, tmp_path, capsys):
    now = [100.0]

    def unpack(files, out):
        now[0] += 50
        return set()

    monkeypatch.setattr(study_files, "unpack_all", unpack)
    make_runs(["plain"], lambda: now[0], budget=lab_study.MARGIN + 49)
    assert capsys.readouterr().out == "left out: plain-seed1\n"
    assert not (tmp_path / "out" / "plain-seed1").exists()


@pytest.mark.parametrize("count", ["0", "-1", "two"])
def test_a_number_of_workers_that_is_none_is_refused(run_study, count):
    refused = run_study(["plain"], f"--workers={count}")
    assert refused.returncode == 2
    assert f"expected a number of runs from 1 on, got '{count}'" in refused.stderr


def test_differences_are_over_the_seeds_that_both_rows_have():
    def row(name, losses):
        finals = {
            seed: None if loss is None else {"status": "finished", "final_loss": loss}
            for seed, loss in losses.items()
        }
        return study_table.Row(name, {}, [], [], finals)

    base = row("base", {1: 3.0, 2: 1.0, 3: 2.0})
    # Over the mean of all seeds of the base it would be behind by 0.75.
    assert study_table.difference_cells(row("a", {1: 2.75, 2: None}), base) == [
        "-0.2500",
        "",
        "1",
    ]
    assert study_table.difference_cells(row("b", {1: 3.5, 3: 3.0}), base) == [
        "+0.7500",
        "",
        "2",
    ]
    three = study_table.difference_cells(row("c", {1: 2.0, 2: 0.0, 3: 1.0}), base)
    assert three == ["-1.0000 ± 0.8165", "4.0", "3"]
    assert study_table.difference_cells(row("d", {4: 1.0}), base) == ["", "", ""]
    diverged = row("e", {})
    diverged.finals = {1: {"status": "diverged"}}
    assert study_table.difference_cells(diverged, base) == ["", "", ""]
