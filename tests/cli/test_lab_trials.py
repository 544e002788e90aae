# SPDX-License-Identifier: Apache-2.0
"""tools/lab_trials.py: equal numbers of trials, a log that is continued, evaluations of runs."""

import json
import pathlib
import subprocess
import sys

import pytest
from train_support import TASK, lines, train_words

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TOOL = ROOT / "tools" / "lab_trials.py"
GRIDS = sorted((ROOT / "src" / "lab" / "task" / "trials").glob("*.json"))
pytestmark = pytest.mark.usefixtures("needs_training")


def call(*words):
    command = [sys.executable, str(TOOL), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("grid", GRIDS, ids=lambda path: path.stem)
def test_a_grid_tries_optimizers_of_its_task_equally_often(rode, grid):
    told = rode.call("tasks", grid.stem, "--json")
    assert told.returncode == 0, told.stderr
    trials = json.loads(grid.read_text())["optimizers"]
    assert set(trials) <= {entry["name"] for entry in json.loads(told.stdout)["optimizers"]}
    assert len({len(points) for points in trials.values()}) == 1


def test_trials_are_equal_in_number_and_made_once(rode, tmp_path):
    task, grid, log = (
        tmp_path / "small.toml",
        tmp_path / "grid.json",
        tmp_path / "trials.jsonl",
    )
    task.write_text(TASK)
    points = {"adamw": [{"lr": 1e-3}, {"lr": 1e-2}], "rode": [{"lr": 1e-2}]}
    words = ["run", "--task", task, "--grid", grid, "--log", log, "--rode", rode.binary]
    grid.write_text(json.dumps({"seed": 11, "steps": 10, "optimizers": points}))
    refused = call(*words)
    assert refused.returncode == 1 and "as many trials" in refused.stderr
    points["rode"].append({"lr": 1e-2, "lr_rho": 3e-2})
    grid.write_text(json.dumps({"seed": 11, "steps": 10, "optimizers": points}))
    done = call(*words)
    assert done.returncode == 0, done.stderr
    trials = lines(log)
    assert [(t["optimizer"], t["options"]) for t in trials] == [
        (name, options) for name, some in points.items() for options in some
    ]
    assert all(t["seed"] == 11 and t["steps"] == 10 for t in trials)
    best = min(trials[:2], key=lambda t: t["final_loss"])
    assert f"adamw: 2 trials, best ({best['options']}" in done.stdout

    log.write_text("".join(json.dumps(t) + "\n" for t in trials[:3]))  # one is still to be made
    again = call(*words)
    assert again.returncode == 0 and lines(log) == trials


def test_trials_of_another_task_or_length_are_others(rode, tmp_path):
    grid, log = tmp_path / "grid.json", tmp_path / "trials.jsonl"
    tasks = [tmp_path / "small.toml", tmp_path / "other.toml"]
    for task in tasks:
        task.write_text(TASK.replace("steps = 120", "steps = 12"))

    def run(task, steps):
        points = {"adamw": [{"lr": 1e-3}]}
        grid.write_text(json.dumps({"seed": 11, "steps": steps, "optimizers": points}))
        words = ["--task", task, "--grid", grid, "--log", log, "--rode", rode.binary]
        done = call("run", *words)
        assert done.returncode == 0, done.stderr
        assert "adamw: 1 trials, best ({'lr': 0.001}" in done.stdout
        return [(line["task"], line["length"]) for line in lines(log)]

    assert run(tasks[0], 10) == [("small", 10)]
    assert run(tasks[0], 8) == [("small", 10), ("small", 8)]
    assert run(tasks[1], 8)[2:] == [("other", 8)]
    assert run(tasks[1], 0)[3:] == [("other", 12)]  # the task's own
    for task, steps in ((tasks[0], 10), (tasks[0], 8), (tasks[1], 8), (tasks[1], 12)):
        assert len(run(task, steps)) == 4


def test_a_trial_that_diverged_is_made_once_and_older_logs_are_read(rode, tmp_path):
    task, grid, log = tmp_path / "small.toml", tmp_path / "grid.json", tmp_path / "trials.jsonl"
    task.write_text(TASK)
    points = {"adamw": [{"lr": 1e30, "lr_rest": 1e30}, {"lr": 1e-3}]}
    grid.write_text(json.dumps({"seed": 11, "steps": 10, "optimizers": points}))
    words = ["run", "--task", task, "--grid", grid, "--log", log, "--rode", rode.binary]
    assert call(*words).returncode == 0
    first = lines(log)
    assert [line["status"] for line in first] == ["diverged", "finished"]
    assert first[0]["steps"] < first[0]["length"] == 10
    assert call(*words).returncode == 0 and lines(log) == first
    for line in first:
        del line["length"]
    log.write_text("".join(json.dumps(line) + "\n" for line in first))
    assert call(*words).returncode == 0
    assert [line["status"] for line in lines(log)] == ["diverged", "finished", "diverged"]


def test_a_trial_that_cannot_run_is_an_error(rode, tmp_path):
    task, grid, log = (
        tmp_path / "small.toml",
        tmp_path / "grid.json",
        tmp_path / "trials.jsonl",
    )
    task.write_text(TASK)
    grid.write_text(json.dumps({"seed": 11, "optimizers": {"rode": [{"lrr": 1}]}}))
    done = call("run", "--task", task, "--grid", grid, "--log", log, "--rode", rode.binary)
    assert done.returncode != 0 and "lrr" in done.stderr and not log.exists()


def test_collect_keeps_the_evaluations(rode, tmp_path):
    task, runs, out = (
        tmp_path / "small.toml",
        tmp_path / "runs",
        tmp_path / "evaluations.jsonl",
    )
    task.write_text(TASK)
    assert rode.call(*train_words(task, runs / "rode-seed1", "--steps", 20)).returncode == 0
    done = call("collect", runs, out)
    assert done.returncode == 0, done.stderr
    found = lines(out)
    assert [line["step"] for line in found] == [0, 20]
    assert all(line["optimizer"] == "rode" and line["seed"] == 1 for line in found)
