# SPDX-License-Identifier: Apache-2.0
"""`rode sweep` with runs of `rode train`: values, divergence, the task file that comes out."""

import json
import os
import subprocess

import pytest

from rode.sweep import propose
from rode.sweep.command import main

PROGRAM = os.environ.get("RODE_TRAIN_BIN", "")
pytestmark = [
    pytest.mark.skipif(not propose.has_optuna(), reason="Optuna is not installed"),
    pytest.mark.skipif(not PROGRAM, reason="RODE_TRAIN_BIN names no program that trains"),
]
# A decoder so small that most of a run is its files.
TASK = """title = "Small"
[model]
kind = "qwen2"
layers = 1
width = 16
heads = 2
kv_heads = 2
mlp_width = 24
vocab_size = 64
[data]
kind = "tiny-lm"
sequence = 16
train_samples = 50
eval_samples = 8
[train]
steps = 40
batch = 8
warmup = 2
eval_interval = 10
routing = "language"
[optimizers.rode]
lr = 1e-2
lr_rest = 3e-3
reproject = "every"
source = "test"
[optimizers.adamw]
lr = 1e-3
lr_rest = 1e-3
source = "test"
[sweep]
trials = 3
steps = 12
eval_interval = 6
select = "mean-training-loss"
last_steps = 5
source = "test"
[sweep.spaces.rode]
lr = [1e-3, 1e-1]
lr_rest = "lr"
[sweep.spaces.adamw]
lr = [1e-3, 1e30]
lr_rest = "lr"
"""


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_sweep_of_real_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(TASK)
    (tmp_path / "first.json").write_text('{"adamw": [{"lr": 1e30}]}')
    more = ["--set", "train.clip=5"]  # a value of the task
    words = [
        "--task",
        "small.toml",
        *more,
        "--rode",
        PROGRAM,
        "--enqueue",
        "first.json",
        "--out",
        "out",
    ]
    assert main([*words, "--json", "--quiet", "--workers", "2", "--", "--threads", "1"]) == 0
    told = {entry["optimizer"]: entry for entry in json.loads(capsys.readouterr().out)["sweeps"]}

    for name in ("rode", "adamw"):
        trials = lines(tmp_path / "out" / name / "trials.jsonl")
        assert [trial["number"] for trial in trials] == [0, 1, 2]
        for trial in trials:
            log = lines(tmp_path / "out" / name / f"trial-{trial['number']:04d}" / "log.jsonl")
            run = tmp_path / "out" / name / f"trial-{trial['number']:04d}" / "run.json"
            described = json.loads(run.read_text())["task"]
            assert described["train"]["clip"] == 5 and "sweep" not in described
            if trial["status"] == "diverged":
                assert trial["value"] is None
                continue
            losses = [line["loss"] for line in log if line["kind"] == "step"]
            evaluated = [line["step"] for line in log if line["kind"] == "evaluation"]
            assert len(losses) == 12 and evaluated == [0, 6, 12]
            assert trial["value"] == pytest.approx(sum(losses[-5:]) / 5, rel=1e-12)
        good = [trial for trial in trials if trial["status"] == "finished"]
        best = min(good, key=lambda trial: trial["value"], default=None)
        assert best is None or told[name]["best"]["number"] == best["number"]
    diverged = lines(tmp_path / "out" / "adamw" / "trials.jsonl")[0]
    assert diverged["status"] == "diverged" and told["adamw"]["diverged"] >= 1
    assert told["rode"]["best"] is not None and told["rode"]["diverged"] == 0

    # What came out is a task, with the best rates and all that was not searched.
    path = tmp_path / "out" / "small-swept.toml"
    shown = subprocess.run([PROGRAM, "tasks", path, "--json"], capture_output=True, check=True)
    swept = {entry["name"]: entry for entry in json.loads(shown.stdout)["optimizers"]}["rode"]
    options = told["rode"]["best"]["options"]
    assert options["lr"] == options["lr_rest"]
    assert options.pop("train.clip") == "5"
    assert {key: float(swept["settings"][key]) for key in options} == {
        key: float(text) for key, text in options.items()
    }
    assert swept["settings"]["reproject"] == "every"
    assert swept["source"] == ("best of 3 trials on seed 11, out/rode/trials.jsonl, train.clip=5")
