# SPDX-License-Identifier: Apache-2.0
"""bench/small_lm.py on synthetic bytes: runs, resumes, records divergence, skips without data."""

import json
import lzma
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from conftest import ROOT

import rode

SCRIPT = ROOT / "bench/small_lm.py"
sys.path.insert(0, str(SCRIPT.parent))

import small_lm_data
import small_lm_plan
import small_lm_train
from small_lm_model import Decoder, Shape, initialise

TINY = Shape(layers=1, width=32, heads=2, hidden=48, context=32)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Bytes with something to learn: each is three more than the one before, or random."""
    random = np.random.default_rng(1)
    steps = np.where(random.random(60_000) < 0.8, 3, random.integers(0, 64, 60_000))
    values = (np.cumsum(steps) % 64).astype(np.uint8)
    folder = tmp_path_factory.mktemp("bytes")
    for part, cut in (("train_00", values[:50_000]), ("valid", values[50_000:])):
        (folder / f"{part}.txt.xz").write_bytes(lzma.compress(cut.tobytes()))
    return folder


@pytest.fixture(autouse=True)
def one_thread():
    """Threads cost more than they bring on matrices of 32."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def run(*arguments, code=0):
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def train(name, lr, data, **changes):
    settings = small_lm_train.Settings(
        shape=TINY, **{"steps": 8, "warmup": 2, "batch": 4, "evaluations": 2, **changes}
    )
    batches = small_lm_train.Batches(*small_lm_data.load(data), settings, "cpu")
    return small_lm_train.train(small_lm_plan.Run(name, lr, 1), settings, batches, {})


def test_a_table_is_made_and_finished_runs_are_kept(data, tmp_path):
    prepared, out = tmp_path / "prepared", tmp_path / "out.json"
    run("prepare", "--data", data, "--to", prepared)
    assert np.load(prepared / "train.npy").size == 50_000
    command = ["run", "--data", prepared, "--out", out, "--quick", "--steps", 3, "--jobs", 2]
    first = run(*command, "--optimizers", "adamw,rode-adaptive")
    document = json.loads(out.read_text())
    assert len(document["runs"]) == 14
    for row in document["summary"]:
        assert row["complete"]
        assert row["trials"] == small_lm_plan.TRIALS
        assert len(row["losses"]) == 3
        assert row["mean"] == pytest.approx(sum(row["losses"]) / 3)
    again = run(*command, "--optimizers", "adamw,rode-adaptive")
    assert "14/14" in first
    assert "14/14" not in again
    assert json.loads(out.read_text())["runs"] == document["runs"]
    assert "rode-adaptive" in run("table", out)
    assert "steps 3, not 4" in run(*command[:-4], "--steps", 4, code=2)


def test_the_script_says_what_is_missing(tmp_path):
    out = tmp_path / "out.json"
    assert "skipped: no train.npy" in run("run", "--data", tmp_path / "nowhere", "--out", out)
    if not torch.cuda.is_available():
        text = run("run", "--data", tmp_path, "--out", out, "--device", "cuda", code=2)
        assert "finds no CUDA device" in text
    assert not out.exists()


@pytest.mark.parametrize("name", small_lm_plan.ENTRIES)
def test_every_optimizer_of_the_table_learns(name, data):
    record = train(name, small_lm_plan.ENTRIES[name].centre, data, steps=40, evaluations=2)
    assert record["diverged"] is None
    assert record["valid_loss"] < 0.9 * np.log(256)
    assert record["valid"][-1] == [40, record["valid_loss"]]
    assert record["train"][-1][0] == record["steps_done"] == 40


def test_a_run_that_diverges_is_recorded(data):
    record = train("sgd", 1e6, data)
    assert record["valid_loss"] is None
    assert record["diverged"]
    json.dumps(record, allow_nan=False)


def test_matrices_are_routed_and_the_rest_is_not():
    model = Decoder(TINY)
    initialise(model, "fan_in", 1)
    assert model.blocks[0].down.weight.std().item() == pytest.approx(48**-0.5, rel=0.1)
    matrices, rest = rode.RODE(model).param_groups
    names = {name.split(".")[2] for name in matrices["param_names"]}
    assert names == {*"qkvo", "gate", "up", "down"}
    assert "embedding.weight" in rest["param_names"]


def test_the_schedule_moves_the_radius_along():
    optimizer = rode.RODE(Decoder(TINY), lr=1e-2, lr_rho=1e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda t: small_lm_train.multiplier(t, 2, 6)
    )
    seen = []
    for _ in range(7):
        group = optimizer.param_groups[0]
        seen.append(group["lr"] / group["reference_lr"])  # times lr_rho: test_contract.py
        optimizer._opt_called = True  # no step is needed to look at the rates
        scheduler.step()
    cosine = [(1 + np.cos(np.pi * t / 4)) / 2 for t in range(5)]
    assert seen == pytest.approx([0.5, 1, *cosine])


def test_the_search_gives_every_optimizer_five_rates_and_follows_the_best():
    def finish(run, loss):
        diverged = None if loss is not None else "by design"
        fields = {"optimizer": run.optimizer, "lr": run.lr, "seed": run.seed}
        records[run] = {**fields, "valid_loss": loss, "diverged": diverged, "seconds": 1.0}

    records = {}
    losses = {0.25: 3.0, 1.0: 2.0, 4.0: None, 0.5: 2.5, 2.0: 1.5}
    for expected in (3, 5, 7):
        runs = small_lm_plan.wanted("muon-rms", 1.0, records)
        assert len(runs) == expected
        for new in runs:
            if new not in records:
                finish(new, losses[new.lr] + new.seed / 10 if losses[new.lr] else None)
    row = small_lm_plan.summarise("muon-rms", 1.0, records)
    assert row["lr"] == 2.0
    assert row["complete"]
    assert not row["at_edge"]
    assert row["trials_diverged"] == 1
    assert row["mean"] == pytest.approx(1.7)
    assert row["sd"] == pytest.approx(0.1)
    assert "1 trials diverged" in small_lm_plan.table([row])
