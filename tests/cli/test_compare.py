# SPDX-License-Identifier: Apache-2.0
"""`rode compare`: runs as needed, the table, the report."""

import json
import os
import pathlib
import signal
import time
from xml.etree import ElementTree

import pytest
from train_support import (
    TASK,
    call_here,
    checkpoints,
    start,
    train_words,
    wait_for_step,
    what_counts,
)

FAILED, USAGE = 1, 2
pytestmark = pytest.mark.usefixtures("needs_training")


def compare_words(task, out, *extra, steps=20):
    words = ["compare", "--task", task, "--optimizers", "rode,adamw", "--seeds", 2, "--out", out]
    return [str(word) for word in [*words, "--steps", steps, "--threads", 1, *extra]]


def figures_of(out):
    """Those of the task that the fixture writes."""
    return out / "figures" / "small"


def test_compare_runs_reports_and_reuses(rode, task, tmp_path):
    out = tmp_path / "all"
    done = rode.call(*compare_words(task, out, "--jobs", 2))
    assert done.returncode == 0, done.stderr
    for word in ("rode", "adamw", "±", "global norm", "report.html"):
        assert word in done.stdout
    (comparison,) = json.loads((out / "report.json").read_text())["tasks"]
    for entry in comparison["optimizers"]:
        finals = [run["final_loss"] for run in entry["runs"]]
        mean = sum(finals) / 2
        assert entry["final_loss"]["mean"] == pytest.approx(mean)
        assert entry["final_loss"]["sd"] == pytest.approx(abs(finals[0] - finals[1]) / 2**0.5)
        assert entry["weight_norm"]["mean"] > 0 and entry["peak_memory_bytes"]["mean"] > 1e6
    for chart in ("validation_loss", "training_loss", "weight_norm"):
        root = ElementTree.fromstring((figures_of(out) / f"{chart}.svg").read_text())
        assert root.tag.endswith("svg")
    page = (out / "report.html").read_text()
    assert page.count("<svg") >= 5 and "src=" not in page and "href=" not in page

    # The same as of any folder of runs.
    assert rode.call("report", out, "--out", tmp_path / "again").returncode == 0
    (again,) = json.loads((tmp_path / "again" / "report.json").read_text())["tasks"]
    assert (
        sorted(again["optimizers"], key=lambda entry: entry["name"], reverse=True)
        == (comparison["optimizers"])
    )
    assert again["protocol"] == comparison["protocol"]

    log = out / "rode-seed1" / "log.jsonl"
    stamp = log.stat().st_mtime_ns
    (out / "adamw-seed2" / "result.json").unlink()
    again = rode.call(*compare_words(task, out, "--json"))
    assert again.returncode == 0 and "3 of 4 runs are done" in again.stderr
    assert log.stat().st_mtime_ns == stamp
    values = [entry["final_loss"] for entry in json.loads(again.stdout)["optimizers"]]
    assert values == [entry["final_loss"] for entry in comparison["optimizers"]]
    other = rode.call(*compare_words(task, out, steps=24))
    assert other.returncode == USAGE and "/steps" in other.stderr

    # A log that is cut, at a line's end or inside a line, is not half a curve.
    lines = log.read_bytes().splitlines(keepends=True)
    for cut in (b"".join(lines[: len(lines) // 2]), b"".join(lines)[:-9]):
        log.write_bytes(cut)
        damaged = rode.call(*compare_words(task, out))
        assert damaged.returncode == FAILED and "log.jsonl" in damaged.stderr, damaged.stderr


def test_compare_is_the_same_as_single_runs(rode, task, tmp_path):
    out, single = tmp_path / "all", tmp_path / "single"
    assert rode.call(*compare_words(task, out)).returncode == 0
    words = train_words(task, single, "--steps", 20, "--seed", 2)
    assert rode.call(*words).returncode == 0
    assert what_counts(out / "rode-seed2") == what_counts(single)


def test_compare_counts_diverged_runs(rode, task, tmp_path):
    task.write_text(TASK.replace("lr = 3e-3\nlr_rest = 3e-3", "lr = 1e30\nlr_rest = 1e30"))
    done = rode.call(*compare_words(task, tmp_path / "all"))
    assert done.returncode == 0, done.stderr
    assert "2 diverged" in done.stdout
    for chart in ("validation_loss", "training_loss"):
        svg = (figures_of(tmp_path / "all") / f"{chart}.svg").read_text()
        ElementTree.fromstring(svg)
        assert svg.count(">adamw, diverged<") == 1 and ">adamw<" not in svg
        assert ">rode<" in svg and ">rode, diverged<" not in svg
        assert 'class="cross"' in svg


def test_charts_are_png_too_where_there_is_a_converter(rode, task, tmp_path, monkeypatch):
    out, programs = tmp_path / "all", tmp_path / "programs"
    programs.mkdir()
    # In its place one that copies: it shows what it was called with.
    converter = programs / "rsvg-convert"
    converter.write_text('#!/bin/sh\n[ "$1" = --output ] && /bin/cp "$3" "$2"\n')
    converter.chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    done = call_here(rode, *compare_words(task, out, steps=2))
    assert done.returncode == 0, done.stderr
    charts = sorted(figures_of(out).glob("*.svg"))
    assert charts
    for chart in charts:
        assert chart.with_suffix(".png").read_bytes() == chart.read_bytes()

    converter.write_text("#!/bin/sh\nexit 3\n")
    done = call_here(rode, *compare_words(task, out, steps=2))
    assert done.returncode == 0 and done.stderr.count("rsvg-convert") == 1, done.stderr
    assert not list(figures_of(out).glob("*.png"))
    assert sorted(figures_of(out).glob("*.svg")) == charts

    converter.unlink()
    done = call_here(rode, *compare_words(task, out, steps=2))
    assert done.returncode == 0 and not list(figures_of(out).glob("*.png"))
    assert "PNG" not in done.stderr


def test_compare_stops_its_runs_and_goes_on(rode, task, tmp_path):
    out = tmp_path / "all"
    task.write_text(TASK.replace("steps = 120", "steps = 100000"))
    words = ["compare", "--task", task, "--optimizers", "rode", "--seeds", 1, "--out", out]
    process = start(rode, *words, "--threads", 1)
    wait_for_step(out / "rode-seed1", 5, process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == FAILED and "run the same command again" in errors
    assert checkpoints(out / "rode-seed1")
    assert not (out / "report.html").exists()


def test_a_stopped_comparison_begins_no_further_run(rode, task, tmp_path):
    out = tmp_path / "all"
    task.write_text(TASK.replace("steps = 120", "steps = 100000"))
    words = ["compare", "--task", task, "--optimizers", "rode,adamw", "--seeds", 3, "--out", out]
    process = start(rode, *words, "--threads", 1, "--jobs", 2, "--overwrite")
    for seed in (1, 2):
        wait_for_step(out / f"rode-seed{seed}", 5, process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == FAILED and "without --overwrite" in errors
    assert sorted(path.name for path in out.iterdir()) == ["rode-seed1", "rode-seed2"]


def child_of(process):
    path = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children")
    for _ in range(3000):
        children = path.read_text().split()
        if children or process.poll() is not None:
            return int(children[0])
        time.sleep(0.005)
    raise AssertionError("no run was started")


def test_a_run_that_a_signal_ends_is_told_as_such(rode, task, tmp_path):
    task.write_text(TASK.replace("steps = 120", "steps = 100000"))
    process = start(rode, *compare_words(task, tmp_path / "all", steps=100000))
    os.kill(child_of(process), signal.SIGKILL)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == FAILED and "was ended by signal 9" in errors, errors
    assert "message is above" not in errors


def test_what_holds_for_every_run_is_told_once(rode, task, tmp_path, monkeypatch):
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "none-such")  # one that Torch warns of
    words = compare_words(task, tmp_path / "all", "--json", "--jobs", 2, steps=1)
    done = call_here(rode, *words)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("Torch warns: ") == 1, done.stderr
    for entry in json.loads(done.stdout)["optimizers"]:
        assert all(len(run["warnings"]) == 1 for run in entry["runs"])


def test_an_optimizer_named_twice_is_wrong_usage(rode, task, tmp_path):
    out = tmp_path / "all"
    done = rode.call("compare", "--task", task, "--optimizers", "rode,rode", "--out", out)
    assert done.returncode == USAGE and "'rode' twice" in done.stderr and not out.exists()


def test_an_unknown_optimizer_is_found_before_anything_runs(rode, task, tmp_path):
    out = tmp_path / "all"
    done = rode.call("compare", "--task", task, "--optimizers", "rode,adam", "--out", out)
    assert done.returncode == USAGE and "adamw" in done.stderr and not out.exists()


def test_settings_of_one_optimizer_and_of_the_task(rode, task, tmp_path):
    out = tmp_path / "all"
    words = [word.replace("rode,adamw", "rode,lion") for word in compare_words(task, out)]
    settings = ("rode.lr=0.5", "train.batch=4", "model.tied=false", "data.train_samples=40")
    extra = [word for setting in settings for word in ("--set", setting)]
    done = rode.call(*words, *extra, "--warmup", 3)
    assert done.returncode == 0, done.stderr
    assert "20 steps of 4 samples (the task has 120 steps), warm-up 3" in done.stdout
    assert "seeds 1 to 2" in done.stdout and "lr = 0.0001" in done.stderr  # Lion's own
    assert done.stderr.count("no rates for 'lion'") == 1
    runs = {
        name: json.loads((out / f"{name}-seed2" / "run.json").read_text())
        for name in ("rode", "lion")
    }
    assert runs["rode"]["options"]["lr"] == "0.5" and runs["lion"]["options"]["lr"] == "0.0001"
    for run in runs.values():
        task_of = run["task"]
        assert (task_of["train"]["batch"], task_of["model"]["tied"]) == (4, False)
        assert (task_of["data"]["train_samples"], run["warmup"]) == (40, 3)
    single = tmp_path / "single"  # the same run by itself
    words = train_words(task, single, "--steps", 20, "--warmup", 3, "--seed", 2, "--set", "lr=0.5")
    assert rode.call(*words, *extra[2:]).returncode == 0
    assert what_counts(single) == what_counts(out / "rode-seed2")


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("lr=1", ("OPTIMIZER.option=value", "rode, adamw")),
        ("muon.lr=1", ("OPTIMIZER.option=value", "rode, adamw")),
        ("rode.lrr=1", ("'lrr'", "'lr'")),
        ("train.batc=1", ("--set", "'batc'", "'batch'")),
        ("train.batch=x", ("--set", "'batch'", "whole number")),
        ("model.heads=3", ("--set", "'heads'", "divisor")),
    ],
)
def test_settings_that_mean_nothing_are_refused(rode, task, tmp_path, setting, words):
    done = rode.call(*compare_words(task, tmp_path / "all", "--set", setting))
    assert done.returncode == USAGE and all(word in done.stderr for word in words), done.stderr
    assert "line" not in done.stderr and not (tmp_path / "all").exists()
