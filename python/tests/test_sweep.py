# SPDX-License-Identifier: Apache-2.0
"""`rode sweep` with a stand-in for the program: proposals, resuming, selection, candidates, files."""

import json
import math
import os
import pathlib
import re
import signal
import sqlite3
import subprocess
import sys
import time

import pytest

from rode.sweep import outcome, plan, propose, result, space
from rode.sweep.command import main

FAKE = pathlib.Path(__file__).with_name("fake_rode.py")
SPACE = space.Space({"lr": (1e-4, 1e-1), "lr_rho": (1e-5, 1e-2)}, {"lr_rest": "lr"}, {"x": "0.9"})
pytestmark = pytest.mark.skipif(not propose.has_optuna(), reason="Optuna is not installed")


@pytest.fixture(autouse=True)
def fake(monkeypatch, tmp_path):
    monkeypatch.setenv("RODE_BIN", str(FAKE))
    monkeypatch.chdir(tmp_path)


def sweep(*words):
    return main(["--task", "fake", "--out", "out", "--quiet", *map(str, words)])


def lines(path):
    return [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()]


def made_plan(**changes):
    told = {"task": "fake", "optimizer": "rode", "space": SPACE, "trials": 5, "steps": 40}
    told |= {
        "eval_interval": 0,
        "protocol": "",
        "select": plan.RULES[0],
        "last_steps": 0,
        "seed": 1,
    }
    return plan.Plan(**{**told, **changes})


def quadratic(values):
    return sum(math.log10(value / 3e-3) ** 2 for value in values.values())


def test_a_proposal_depends_on_the_seed_and_the_trials_before_it_only():
    history = []
    for number in range(14):
        values = propose.propose(SPACE, 5, history, [], "tpe")
        assert values == propose.propose(SPACE, 5, list(history), [], "tpe")
        assert all(low <= values[k] <= high for k, (low, high) in SPACE.ranges.items())
        status = propose.DIVERGED if values["lr"] > 3e-2 else propose.FINISHED
        value = math.inf if status == propose.DIVERGED else quadratic(values)
        history.append(propose.Record(number, values, status, value))
    assert any(record.status == propose.DIVERGED for record in history)
    assert propose.propose(SPACE, 6, history[:3], [], "tpe") != history[3].values
    # After the first ten, drawn at random, what came before matters, diverged trials too.
    other = [*history[:12], propose.Record(12, history[12].values, propose.FINISHED, -9.0)]
    assert propose.propose(SPACE, 5, other, [], "tpe") != history[13].values
    # A trial that runs elsewhere counts, or two workers would try the same.
    running = [*history[:12], propose.Record(12, history[12].values)]
    assert propose.propose(SPACE, 5, running, [], "tpe") != history[12].values


def test_draws_without_optuna_are_log_uniform_and_repeat():
    drawn = [
        propose.propose(SPACE, 3, [propose.Record(i, {}) for i in range(number)], [], "random")
        for number in range(400)
    ]
    again = propose.propose(SPACE, 3, [propose.Record(0, {})] * 7, [], "random")
    assert again == drawn[7] != propose.propose(SPACE, 4, [propose.Record(0, {})] * 7, [], "random")
    for key, (low, high) in SPACE.ranges.items():
        logs = [(math.log(v[key]) - math.log(low)) / math.log(high / low) for v in drawn]
        assert 0 <= min(logs) < 0.02 and 0.98 < max(logs) <= 1
        assert abs(sum(logs) / len(logs) - 0.5) < 5 * math.sqrt(1 / 12 / len(logs))


def wait_for(condition, process):
    for _ in range(18000):
        if condition():
            return
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)
    raise AssertionError("the sweep does not move")


def test_a_sweep_that_is_killed_resumes_to_the_same_trials(tmp_path):
    words = ["--task", "fake", "--optimizers", "rode", "--quiet"]
    assert main([*words, "--out", "whole"]) == 0
    whole = lines("whole/rode/trials.jsonl")
    assert [line["number"] for line in whole] == list(range(14))
    assert {line["status"] for line in whole} == {"finished", "diverged"}

    command = [sys.executable, "-m", "rode", "sweep", *words, "--out", "cut"]
    for ended, kind in ((3, signal.SIGKILL), (11, signal.SIGTERM)):
        process = subprocess.Popen(
            command,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "FAKE_SECONDS": "0.3"},
        )
        # In the middle of the trial after these.
        runs = tmp_path / "cut" / "rode"
        wait_for((runs / f"trial-{ended:04d}" / "run.json").exists, process)
        process.send_signal(kind)
        process.wait()
        assert not (runs / f"trial-{ended:04d}" / "result.json").exists()
        assert len(lines(runs / "trials.jsonl")) == ended
    assert "run the same command again" in process.stderr.read()
    assert main([*words, "--out", "cut"]) == 0
    assert lines("cut/rode/trials.jsonl") == whole
    numbers = sqlite3.connect("cut/sweep.db").execute("select number from trials").fetchall()
    assert sorted(numbers) == [(i,) for i in range(14)], "no trial is left over"


def test_a_finished_sweep_is_left_as_it_is_and_may_be_extended():
    assert sweep("--optimizers", "adamw", "--trials", 3) == 0
    first = lines("out/adamw/trials.jsonl")
    FAKE_CALLS = sorted(pathlib.Path("out/adamw").glob("trial-*/run.json"))
    times = [path.stat().st_mtime_ns for path in FAKE_CALLS]
    assert sweep("--optimizers", "adamw", "--trials", 3) == 0
    assert times == [path.stat().st_mtime_ns for path in FAKE_CALLS]
    assert sweep("--optimizers", "adamw", "--trials", 5) == 0
    assert lines("out/adamw/trials.jsonl")[:3] == first
    assert len(lines("out/adamw/trials.jsonl")) == 5


def test_workers_share_a_study_without_repeating_a_trial(monkeypatch):
    monkeypatch.setenv("FAKE_SECONDS", "0.1")
    words = ["--task", "fake", "--optimizers", "rode", "--out", "out", "--quiet"]
    other = subprocess.Popen([sys.executable, "-m", "rode", "sweep", *words, "--workers", "2"])
    assert main([*words, "--workers", "2"]) == 0
    assert other.wait() == 0
    trials = lines("out/rode/trials.jsonl")
    assert [line["number"] for line in trials] == list(range(14))
    assert len({json.dumps(line["options"]) for line in trials}) == 14


def test_the_rules_of_selection(tmp_path):
    losses = [5.0, 1.0, 2.0, 4.0]
    steps = [{"kind": "step", "loss": loss} for loss in losses]
    log = [steps[0], {"kind": "evaluation", "loss": 90.0}, *steps[1:], {"kind": "evaluation"}]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in log))
    told = {"status": "finished", "final_loss": 7.0, "best_loss": 6.0}
    (tmp_path / "result.json").write_text(json.dumps(told))

    def value(rule, last=0):
        return outcome.read_outcome(tmp_path, made_plan(select=rule, last_steps=last, steps=4))

    assert value(plan.RULES[0]).value == 7.0
    assert value(plan.RULES[1]).value == 6.0
    assert value(plan.RULES[2], 2).value == 3.0
    assert value(plan.RULES[2], 4).value == 3.0 == sum(losses) / 4
    # As `rode finetune` calls it.
    (tmp_path / "result.json").write_text('{"status": "finished", "best_validation_loss": 5.5}')
    assert value(plan.RULES[1]).value == 5.5
    for text in ('{"status": "finished", "best_validation_loss": null}', '{"status": "diverged"}'):
        (tmp_path / "result.json").write_text(text)
        found = value(plan.RULES[1])
        assert found.status == "diverged" and found.value == math.inf
    (tmp_path / "result.json").write_text('{"status": "paused"}')
    assert value(plan.RULES[1]) is None


def test_the_best_is_the_lowest_and_diverged_trials_are_counted(capsys):
    assert sweep("--optimizers", "rode", "--json") == 0
    told = json.loads(capsys.readouterr().out)["sweeps"][0]
    trials = lines("out/rode/trials.jsonl")
    good = [line for line in trials if line["status"] == "finished"]
    assert told["trials"] == 14 and told["diverged"] == 14 - len(good) > 0
    assert all(line["value"] is None for line in trials if line not in good)
    best = min(good, key=lambda line: line["value"])
    assert told["best"]["number"] == best["number"] and told["best"]["value"] == best["value"]
    # The dashboard and any other program see the worst value.
    rows = sqlite3.connect("out/sweep.db").execute("select value_type from trial_values").fetchall()
    assert sum(row[0].startswith("INF") for row in rows) == told["diverged"]


def test_tied_and_fixed_options_reach_the_trial():
    assert sweep("--trials", 2) == 0
    for name in ("rode", "adamw"):
        for path in pathlib.Path(f"out/{name}").glob("trial-*/run.json"):
            words = json.loads(path.read_text())["words"]
            settings = dict(w.split("=") for w, flag in zip(words[1:], words) if flag == "--set")
            if name == "adamw":
                assert set(settings) == {"lr", "lr_rest"}
                assert settings["lr"] == settings["lr_rest"]
            else:
                assert settings["momentum"] == "0.9" and settings["lr"] != settings["lr_rho"]


def test_candidates_come_first_and_count(tmp_path):
    points = [{"lr": 2e-3, "lr_rho": 3e-3}, {"lr": 4e-3}]
    (tmp_path / "c.json").write_text(json.dumps({"rode": points}))
    assert sweep("--trials", 4, "--enqueue", "c.json") == 0
    trials = [line["options"] for line in lines("out/rode/trials.jsonl")]
    assert len(trials) == 4
    assert trials[0] == {"momentum": "0.9", "lr": "0.002", "lr_rho": "0.003"}
    assert trials[1]["lr"] == "0.004" and 1e-5 <= float(trials[1]["lr_rho"]) <= 1e-2
    assert len(lines("out/adamw/trials.jsonl")) == 4
    assert sweep("--trials", 4) == 2, "the same study without them is another"


@pytest.mark.parametrize(
    "text,words",
    [
        ('[{"lr": 5}]', ["lr = 5.0", "0.0001 to 0.1", "--space lr="]),
        ('[{"lt": 1e-3}]', ["'lt' has no range", "lr, lr_rho"]),
        ('[{"lr": "x"}]', ["expected a list of objects"]),
        ('{"rode": 3}', ["expected a list of objects"]),
        ("{", ["c.json"]),
    ],
)
def test_wrong_candidates_are_refused_before_anything_runs(tmp_path, capsys, text, words):
    (tmp_path / "c.json").write_text(text)
    assert sweep("--optimizers", "rode", "--enqueue", "c.json") in (1, 2)
    message = capsys.readouterr().err
    assert all(word in message for word in words), message
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "words,told",
    [
        (["--optimizers", "rod"], "did you mean 'rode'"),
        (["--optimizers", "../x", "--space", "lr=1e-4:1e-2"], "letters, digits and dashes"),
        (["--optimizers", "bare"], "has no search space for 'bare'"),
        (["--space", "lr=2:1"], "expected KEY=LOW:HIGH"),
        (["--space", "lr=0:1"], "expected KEY=LOW:HIGH"),
        (["--tie", "lr_rest=lrr", "--optimizers", "rode"], "expected one of lr, lr_rho"),
        (["--select", "mean-training-loss"], "set --last-steps"),
        (["--select", "mean-training-loss", "--last-steps", "41"], "expected 1 to 40"),
        (["--workers", "0"], "expected a whole number of at least 1"),
        (["--unknown"], "--unknown"),
    ],
)
def test_wrong_usage_is_named(tmp_path, capsys, words, told):
    assert sweep(*words) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_trial_that_cannot_run_ends_the_sweep_with_its_message(capsys):
    assert sweep("--optimizers", "wrong", "--space", "lr=1e-4:1e-2") == 1
    message = capsys.readouterr().err
    assert "this optimizer does not run" in message and "its command was" in message


def test_a_space_of_the_command_line(capsys):
    words = ["--optimizers", "bare", "--space", "lr=1e-3:2e-3", "--tie", "lr_rest=lr"]
    assert sweep(*words, "--set", "x=y=z", "--trials", 2, "--json") == 0
    told = json.loads(capsys.readouterr().out)["sweeps"][0]
    assert told["space"] == {"lr": [1e-3, 2e-3], "lr_rest": "lr", "x": {"value": "y=z"}}


@pytest.mark.parametrize(
    "keep,left",
    [
        ("all", {"checkpoints", "log.jsonl", "model.safetensors", "result.json", "run.json"}),
        ("logs", {"log.jsonl", "result.json", "run.json"}),
        ("none", None),
    ],
)
def test_what_stays_of_a_trial(keep, left):
    assert sweep("--optimizers", "rode", "--trials", 1, "--keep", keep) == 0
    folder = pathlib.Path("out/rode/trial-0000")
    assert (set(os.listdir(folder)) if folder.exists() else None) == left
    assert os.listdir("out/rode/.sweep") in ([], ["study.lock"])


def test_the_best_options_are_written_into_the_task():
    assert sweep("--optimizers", "rode", "--trials", 2) == 0
    assert sweep("--optimizers", "adamw", "--trials", 2) == 0
    text = pathlib.Path("out/fake-swept.toml").read_text()
    for name in ("rode", "adamw"):
        best = json.loads(pathlib.Path(f"out/{name}/best.json").read_text())["best"]["options"]
        entry = re.search(rf"\[optimizers\.{name}\]\n(.*?)\n\n", text, re.DOTALL)[1].splitlines()
        assert entry[-1] == f'source = "best of 2 trials on seed 11, out/{name}/trials.jsonl"'
        assert set(entry[:-1]) == {f"{key} = {value}" for key, value in best.items()}
    assert text.endswith("\n[sweep]\ntrials = 14\n")
    new = result.changed_task(text, "a.b", {"lr": "1e-05", "reproject": "every"}, "s")
    assert new.endswith('\n\n[optimizers."a.b"]\nlr = 1e-05\nreproject = "every"\nsource = "s"\n')


def test_a_folder_is_for_one_task(tmp_path, capsys):
    (tmp_path / "other.toml").write_text("")
    words = ["--optimizers", "adamw", "--trials", "2", "--out", "out", "--quiet"]
    assert main(["--task", "fake", *words]) == 0
    first = lines("out/adamw/trials.jsonl")
    assert main(["--task", "other.toml", *words]) == 2
    assert (
        "'fake adamw' of task 'fake', but now the task is 'other.toml'" in capsys.readouterr().err
    )
    assert main(["--task", "other.toml", *words[2:], "--optimizers", "rode"]) == 2
    assert lines("out/adamw/trials.jsonl") == first and not pathlib.Path("out/rode").exists()
    # Trials whose study is gone are nobody's; the best of another task is not written.
    pathlib.Path("out/sweep.db").unlink()
    assert main(["--task", "other.toml", *words]) == 2
    assert "has trials of a study that" in capsys.readouterr().err
    assert result.write_task(str(FAKE), "other.toml", pathlib.Path("out")) is None


def test_options_of_every_trial_are_part_of_the_study(capsys):
    words = ["--optimizers", "rode", "--trials", 1]
    assert sweep(*words, "--", "--data", "a b", "--threads", "1", "--device=cpu") == 0
    assert sweep(*words, "--", "--data", "a b", "--threads=2") == 0
    assert sweep(*words, "--", "--data", "c") == 2
    assert (
        "started with trial_options = --data 'a b', but now it is --data c"
        in capsys.readouterr().err
    )
    assert sweep(*words) == 2
    text = pathlib.Path("out/fake-swept.toml").read_text()
    assert "out/rode/trials.jsonl, --data 'a b'\"" in text


def test_an_option_tied_to_a_fixed_one_takes_its_value():
    found = space.changed(SPACE, [], [], ["lr=1e-3"])
    assert found.tied == {} and set(found.ranges) == {"lr_rho"}
    assert found.fixed == {"x": "0.9", "lr": "1e-3", "lr_rest": "1e-3"}


def test_a_folder_that_cannot_be_made_is_named(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["--task", "fake", "--out", "file/out", "--quiet"]) == 1
    message = capsys.readouterr().err
    assert "[files] 'file/out': Not a directory" in message and "correct the path" in message


def test_fine_tuning_is_swept_by_its_own_presets(tmp_path, monkeypatch, capsys):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nshift 2\nexec {sys.executable} {FAKE} "$@"\n')  # not -m rode
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    words = ["--finetune", "--out", "out", "--quiet", "--json"]
    for rule in (plan.RULES[0], plan.RULES[2]):
        assert main([*words, "--select", rule, "--last-steps", "2", "--", "--model", "m"]) == 2
        assert "expected best-validation-loss" in capsys.readouterr().err
        assert not (tmp_path / "out").exists()
    assert main([*words, "--optimizers", "adamw", "--", "--model", "m"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["task_file"] is None
    sweep = told["sweeps"][0]
    assert sweep["select"] == "best-validation-loss" and sweep["steps"] == 8
    assert (sweep["trials"], sweep["diverged"], sweep["best"]["value"]) == (4, 2, 0.5)
    given = json.loads(pathlib.Path("out/adamw/trial-0003/run.json").read_text())["words"]
    assert given[-2:] == ["--model", "m"] and "--trial" in given and "--task" not in given
    rates = {w.split("=")[0]: w.split("=")[1] for w in given if w.startswith("lr")}
    assert rates["lr"] == rates["lr_rest"]
    for more in (["--model", "n"], ["--model", "m", "--data", "d"]):
        assert main([*words, "--optimizers", "adamw", "--", *more]) == 2
        assert "started with trial_options = --model m" in capsys.readouterr().err
