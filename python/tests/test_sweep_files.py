# SPDX-License-Identifier: Apache-2.0
"""`rode sweep ask`, `tell` and `best`: a study in a file, with and without Optuna."""

import json
import pathlib

import pytest

from rode.sweep import ask_tell, propose
from rode.sweep.command import main
from rode.sweep.plan import finetune_table

FAKE = pathlib.Path(__file__).with_name("fake_rode.py")
BEGIN = ["--task", "fake", "--optimizers", "adamw", "--rode", str(FAKE)]
needs_optuna = pytest.mark.skipif(not propose.has_optuna(), reason="Optuna is not installed")


@pytest.fixture
def study(monkeypatch, tmp_path):
    """Calls a subcommand on one file; its lines of JSON."""
    monkeypatch.chdir(tmp_path)

    class Study:
        path = tmp_path / "s.jsonl"
        code = 0

        def __call__(self, name, *words):
            self.code = main([name, "--study", str(self.path), *map(str, words)])

    return Study()


def told(capsys):
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_trials_are_asked_for_and_told(study, capsys, monkeypatch):
    monkeypatch.setattr(ask_tell, "has_optuna", lambda: False)
    study("ask", *BEGIN, "--count", 3, "--", "--threads", "1")
    assert study.code == 0
    first = told(capsys)
    assert [trial["number"] for trial in first] == [0, 1, 2]
    for trial in first:
        assert trial["options"]["lr"] == trial["options"]["lr_rest"]
        assert trial["command"][:2] == [str(FAKE), "train"]
        assert trial["command"][-2:] == ["--threads", "1"]
        assert f"lr={trial['options']['lr']}" in trial["command"]
    study("tell", "--trial", 1, "--value", "2.5", "--json")
    study("tell", "--trial", 0, "--value", "diverged", "--json")
    capsys.readouterr()
    study("best", "--json")
    best = json.loads(capsys.readouterr().out)
    assert best["trials"] == 2 and best["diverged"] == 1
    assert best["best"] == {"number": 1, "value": 2.5, "options": first[1]["options"]}
    study("ask", "--count", 20)
    asked = told(capsys)
    assert [trial["number"] for trial in asked] == list(range(3, 14)), "the task has 14"
    study("ask")
    assert study.code == 0 and capsys.readouterr().out == ""


def test_the_options_of_every_trial_are_kept(study, capsys):
    study("ask", *BEGIN, "--sampler", "random", "--", "--data", "a b", "--threads", "1")
    assert json.loads(study.path.read_text().splitlines()[0])["trial_options"] == "--data 'a b'"
    capsys.readouterr()
    study("ask", "--sampler", "random", "--", "--threads", "2")
    assert told(capsys)[0]["command"][-4:] == ["--data", "a b", "--threads", "2"]
    study("ask", "--sampler", "random", "--", "--data", "c")
    assert study.code == 2 and "now it is --data c" in capsys.readouterr().err


def test_the_value_may_come_from_the_folder_of_the_run(study, capsys, tmp_path):
    study("ask", *BEGIN, "--sampler", "random")
    run = tmp_path / "run"
    study("tell", "--trial", 0, "--run", run)
    assert study.code == 1 and "has no result" in capsys.readouterr().err
    run.mkdir()
    (run / "result.json").write_text('{"status": "finished", "final_loss": 4.25}')
    study("tell", "--trial", 0, "--run", run)
    assert study.code == 0 and "4.2500" in capsys.readouterr().out


@needs_optuna
def test_proposals_depend_on_what_was_told(study, capsys, tmp_path):
    values = []
    for shift in (0, 0, 1):
        study.path = tmp_path / f"s{len(values)}.jsonl"
        study("ask", *BEGIN, "--count", 11)
        for number in range(11):
            study("tell", "--trial", number, "--value", (number * 7 + shift * number**2) % 11)
        capsys.readouterr()
        study("ask")
        values.append(told(capsys)[0]["options"])
    assert values[0] == values[1] != values[2]


def test_a_line_that_was_cut_is_dropped_and_told_again(study, capsys):
    study("ask", *BEGIN, "--sampler", "random", "--count", 2)
    whole = study.path.read_text()
    study.path.write_text(whole + '{"kind": "value", "numb')
    study("tell", "--trial", 1, "--value", 3)
    assert study.code == 0
    added = study.path.read_text().removeprefix(whole)
    assert json.loads(added) == {"kind": "value", "number": 1, "status": "finished", "value": 3.0}


def test_wrong_usage_is_named(study, capsys):
    def error(code, *words):
        capsys.readouterr()
        study(*words)
        assert study.code == code
        return capsys.readouterr().err

    assert "start one with --task" in error(2, "ask")
    assert "start one with --task" in error(2, "tell", "--trial", 0, "--value", 1)
    assert "expected one: a study has one optimizer" in error(2, "ask", *BEGIN[:2], *BEGIN[4:])
    study("ask", *BEGIN, "--sampler", "random")
    assert "expected the same" in error(2, "ask", *BEGIN, "--seed", 12)
    assert "expected 0 to 0" in error(2, "tell", "--trial", 1, "--value", 1)
    assert "expected a number, or 'diverged'" in error(2, "tell", "--trial", 0, "--value", "nan")
    study("tell", "--trial", 0, "--value", 1)
    assert "has this value already" in error(0, "tell", "--trial", 0, "--value", 1)
    assert "one value per trial" in error(2, "tell", "--trial", 0, "--value", 2)
    study.path.write_text('{"kind": "other"}\n')
    assert "does not begin with a study" in error(1, "best")
    study.path.write_text("x\n")
    assert "cannot be read" in error(1, "best")


def test_without_optuna_the_sweep_says_what_to_install(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(propose, "has_optuna", lambda: False)
    assert main(["--task", "fake", "--rode", str(FAKE)]) == 1
    message = capsys.readouterr().err
    assert "Optuna is not installed" in message and "rode[sweep]" in message
    assert "ask and tell" in message and list(tmp_path.iterdir()) == []


def test_the_presets_of_fine_tuning_are_the_papers():
    protocol = pytest.importorskip("rode.finetune.protocol", reason="no rode.finetune here")
    root = pathlib.Path(__file__).resolve().parents[2]
    paper = json.loads((root / "tests/lab/golden/paper_sweeps.json").read_text())["finetune"]
    sweep = finetune_table(protocol.data())["sweep"]
    assert {key: sweep[key] for key in paper} == paper
