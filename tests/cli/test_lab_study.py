# SPDX-License-Identifier: Apache-2.0
"""bench/lab_study.py: runs within a budget, in parts, and their table."""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tarfile

import pytest
from train_support import TASK

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TOOL = ROOT / "bench" / "lab_study.py"
STUDIES = sorted((ROOT / "bench" / "studies").glob("*.json"))
pytestmark = pytest.mark.usefixtures("needs_training")


def call(*words):
    command = [sys.executable, str(TOOL), *map(str, words)]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_a_study_names_optimizers_and_options_that_there_are(rode, path):
    study = json.loads(path.read_text())
    listed = json.loads(rode.call("optimizers", "--json").stdout)["optimizers"]
    task = study["task"]
    if task.endswith(".toml"):
        task = path.parent / task
    task = json.loads(rode.call("tasks", task, "--json").stdout)["optimizers"]
    # A variant of the task takes the options of its optimizer.
    options = {entry["name"]: {o["key"] for o in entry["options"]} for entry in listed}
    options |= {entry["name"]: options[entry["optimizer"]] for entry in task}
    for row in study["rows"]:
        for given in (row.get("set", {}), *row.get("trials", [])):
            assert set(given) <= options[row["optimizer"]], row
    check_trials_are_fair(study["rows"])


def check_trials_are_fair(rows):
    """Where rows are compared: four trials each, or a fifth beyond the rates of these."""
    if len(rows) < 2 or not any("trials" in row for row in rows):
        return
    for row in rows:
        rates = [trial["lr"] for trial in row["trials"]]
        assert len(rates) in (4, 5), row
        for beyond in rates[4:]:
            assert not min(rates[:4]) <= beyond <= max(rates[:4]), row


@pytest.mark.parametrize("rates", [[1, 2, 4], [1, 2, 4, 8, 3], [1, 2, 4, 8, 16, 32]])
def test_trials_that_are_not_fair_are_found(rates):
    with pytest.raises(AssertionError):
        check_trials_are_fair([{"trials": [{"lr": rate} for rate in rates]}] * 2)


def test_a_part_goes_on_where_the_last_one_ended(rode, tmp_path):
    task, file = tmp_path / "small.toml", tmp_path / "study.json"
    task.write_text(TASK)
    study = {
        "task": str(task),
        "what": "a test",
        "seeds": [1, 2],
        "steps": 6,
        "trial_seed": 9,
        "trial_steps": 4,
        "rows": [
            {"optimizer": "adamw", "trials": [{"lr": 1e-3}, {"lr": 1e-2}]},
            {"optimizer": "rode", "set": {"lr": 1e-2}, "seeds": [1]},
        ],
    }
    file.write_text(json.dumps(study))
    words = ["--rode", rode.binary, "--data", tmp_path, "--threads", 1, "--device", "cpu"]

    nothing = call("run", file, *words, "--out", tmp_path / "a", "--budget", 1)
    assert nothing.returncode == 0, nothing.stderr
    assert "left out: adamw-trial1 adamw-trial2 rode-seed1" in nothing.stdout

    first = tmp_path / "first.tar.xz"
    done = call("run", file, *words, "--out", tmp_path / "a", "--pack", first, "--workers", 2)
    assert done.returncode == 0 and "packed 5 runs" in done.stdout, done.stdout + done.stderr
    kept = {"run.json", "log.jsonl", "times.jsonl", "result.json"}
    assert {path.name for path in (tmp_path / "a" / "rode-seed1").iterdir()} == kept
    trials = [json.loads((tmp_path / f"a/adamw-trial{n}/result.json").read_text()) for n in (1, 2)]
    best = min(range(2), key=lambda n: trials[n]["final_loss"])
    made = json.loads((tmp_path / "a/adamw-seed2/run.json").read_text())
    assert float(made["options"]["lr"]) == study["rows"][0]["trials"][best]["lr"]
    assert made["steps"] == 6 and trials[0]["steps"] == 4

    # Another machine, which has only the packed file, and a seed more.
    study["seeds"] = [1, 2, 3]
    file.write_text(json.dumps(study))
    second = tmp_path / "second.tar.xz"
    more = call("run", file, *words, "--out", tmp_path / "b", "--done", first, "--pack", second)
    assert more.returncode == 0 and "packed 1 runs" in more.stdout, more.stdout + more.stderr
    assert more.stdout.count(" s\n") == 1  # no run is made twice
    report = rode.call("report", tmp_path / "b", "--format", "md", "--json")
    assert report.returncode == 0, report.stderr

    table = call("table", file, tmp_path / "b")
    finals = [
        json.loads((tmp_path / f"b/adamw-seed{n}/result.json").read_text()) for n in (1, 2, 3)
    ]
    losses = [final["final_loss"] for final in finals]
    expected = f"{statistics.mean(losses):.4f} ± {statistics.stdev(losses):.4f}"
    assert expected in table.stdout and f"{trials[0]['final_loss']:.4f}" in table.stdout


def test_a_packed_file_that_was_changed_is_refused(tmp_path):
    data = tmp_path / "x-seed1"
    data.mkdir()
    for name in ("run.json", "log.jsonl", "times.jsonl", "result.json"):
        (data / name).write_text("{}")
    (tmp_path / "SHA256SUMS").write_text("0" * 64 + "  x-seed1/run.json\n")
    with tarfile.open(tmp_path / "bad.tar.xz", "w:xz") as archive:
        archive.add(data / "run.json", "x-seed1/run.json")
        archive.add(tmp_path / "SHA256SUMS", "SHA256SUMS")
    refused = call("unpack", tmp_path / "bad.tar.xz", "--out", tmp_path / "out")
    assert refused.returncode == 1 and "x-seed1/run.json" in refused.stderr
    assert not (tmp_path / "out").exists()


def made_run(folder, **changed):
    """What `rode train --task wiki-114m --optimizer rode` leaves, with the changes given."""
    folder.mkdir(parents=True, exist_ok=True)
    told = {
        "task": {
            "name": "wiki-114m",
            "model": {"width": 768},
            "train": {"steps": 600, "warmup": 120, "clip": 0.0},
        },
        "optimizer": "rode",
        "seed": 1,
        "steps": 600,
        "warmup": 120,
        "options": {
            "lr": "0.01", "radius": "adaptive", "nesterov": "true", "betas_rest": "0.9,0.95"
        },
    }  # fmt: skip
    for key, value in changed.items():
        *path, last = key.split("__")
        inner = told
        for name in path:
            inner = inner[name]
        inner[last] = value
    (folder / "run.json").write_text(json.dumps(told))
    (folder / "result.json").write_text('{"status": "finished"}')


def test_a_run_of_another_task_is_not_one_of_the_study(tmp_path):
    sys.path.insert(0, str(ROOT / "bench"))
    import lab_study
    import study_files

    study = lab_study.read_study(ROOT / "bench" / "studies" / "components.json")
    run = next(run for run in lab_study.plan(study, tmp_path) if run.name == "muon-rms-seed1")
    given = argparse.Namespace(out=tmp_path, scale=None)
    assert not study_files.is_done(given, run)
    made_run(tmp_path / run.name, optimizer="muon-rms")
    assert study_files.is_done(given, run)
    short = {"task__train__steps": 24, "steps": 24}
    made_run(tmp_path / run.name, optimizer="muon-rms", task__name="wiki-small", **short)
    with pytest.raises(SystemExit, match="task = wiki-small, not wiki-114m; steps = 24, not 600"):
        study_files.is_done(given, run)


@pytest.mark.parametrize(
    "changed,told",
    [
        ({}, ""),
        ({"options__radius": "learned", "options__nesterov": "false", "task__model__width": 768},
         "model.width = 768, not 1024; radius = learned, not adaptive; nesterov = false, not True"),
        ({"task__name": "wiki-small"}, "task = wiki-small, not wiki-114m"),
        ({"task__scale": "tiny"}, "scale = tiny, not "),
        ({"steps": 24}, "steps = 24, not 600"),
        ({"warmup": 3}, "warmup = 3, not 120"),
        ({"seed": 2}, "seed = 2, not 1"),
        ({"optimizer": "muon"}, "optimizer = muon, not rode"),
        ({"options__lr": "0.02"}, "lr = 0.02, not 0.01"),
        ({"options__betas_rest": "0.9,0.99"}, "betas_rest = 0.9,0.99, not 0.90,0.95"),
        ({"task__train__average_tail": 0.5}, "train.average_tail = 0.5, not 0"),
    ],
)  # fmt: skip
def test_a_run_with_other_settings_is_another_one(tmp_path, changed, told):
    sys.path.insert(0, str(ROOT / "bench"))
    import lab_study
    import study_files

    settings = {"model.width": 1024, "radius": "adaptive", "nesterov": True, "lr": 1e-2}
    settings |= {"betas_rest": "0.90,0.95", "train.average_tail": 0, "train.cooldown": 0.5}
    run = lab_study.Run("x", "wiki-114m", "rode", 1, settings=settings)
    made_run(tmp_path / "x", **({"task__model__width": 1024} | changed))
    given = argparse.Namespace(out=tmp_path, scale=None)
    if not told:
        assert study_files.is_done(given, run)
        return
    with pytest.raises(SystemExit) as refused:
        study_files.is_done(given, run)
    assert f"another run than x: {told}; choose another --out" in str(refused.value)


def fake_run(folder, width, depth, lr, rho, loss):
    folder.mkdir(parents=True)
    told = {
        "task": {"model": {"width": width, "layers": depth}},
        "optimizer": "rode",
        "seed": 21,
        "steps": 150,
        "options": {"lr": str(lr), "lr_rho": str(rho)},
    }
    (folder / "run.json").write_text(json.dumps(told))
    finished = {"status": "finished", "final_loss": loss} if loss else {"status": "diverged"}
    (folder / "result.json").write_text(json.dumps(finished))


def test_the_transfer_grid_tries_lr_then_lr_rho_at_the_best_and_says_how_far_they_differ(tmp_path):
    sys.path.insert(0, str(ROOT / "bench"))
    import transfer_grid

    given = argparse.Namespace(task="t", option=["scale=angle"], lr=[1.0, 2.0], lr_rho=[3.0, 4.0])
    first = transfer_grid.plan(tmp_path, given)
    assert len(first) == 2 * len(transfer_grid.SIZES)
    assert first[0].settings["model.mlp_width"] == 704 and first[0].steps == 150
    best = {256: 1.0, 512: 2.0, 1024: 2.0}
    for run in first:
        width, depth = run.settings["model.width"], run.settings["model.layers"]
        loss = 5.0 if run.settings["lr"] == best[width] else 6.0
        loss = None if (width, run.settings["lr"]) == (1024, 1.0) else loss
        fake_run(tmp_path / run.name, width, depth, run.settings["lr"], 3.0, loss)
    second = transfer_grid.plan(tmp_path, given)[len(first) :]
    assert [(r.settings["lr"], r.settings["lr_rho"]) for r in second] == [
        (best[width], 4.0) for width, _ in transfer_grid.SIZES
    ]
    for run, (width, depth) in zip(second, transfer_grid.SIZES, strict=True):
        fake_run(tmp_path / run.name, width, depth, best[width], 4.0, 5.5)
    told = subprocess.run(
        [sys.executable, str(ROOT / "bench" / "transfer_grid.py"), "table", str(tmp_path)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert "| width 256, depth 4 | **5.0000** | 6.0000 |" in told
    assert "| width 1024, depth 4 | diverged | **5.0000** |" in told
    assert "The best lr of the sizes are 1 steps of the grid apart." in told
    assert "| width 512, depth 12 | **5.0000** | 5.5000 |" in told
    assert "The best lr_rho of the sizes are 0 steps of the grid apart." in told
