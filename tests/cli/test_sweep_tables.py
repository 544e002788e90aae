# SPDX-License-Identifier: Apache-2.0
"""The [sweep] tables of the tasks: the paper's search spaces, budgets and rules."""

import json
from pathlib import Path

import pytest

GOLDEN = Path(__file__).resolve().parents[1] / "lab" / "golden" / "paper_sweeps.json"


@pytest.fixture
def tasks(rode):
    if "no lab" in rode.call("tasks").stderr:
        pytest.skip("this build has no lab")
    return {t["name"]: t for t in json.loads(rode.call("tasks", "--json").stdout)["tasks"]}


def test_they_are_the_papers(tasks):
    paper = json.loads(GOLDEN.read_text())
    for name, budget in paper["budgets"].items():
        sweep = tasks[name]["sweep"]
        for key in ("trials", "steps", "select", "last_steps"):
            assert sweep.get(key) == budget.get(key), f"{name} {key}"
        assert sweep["eval_interval"] == sweep["steps"], "one evaluation, at the end"
        spaces = paper["spaces"][name]
        # What the paper calls RODE iterates as published: its twins have the same space.
        twins = {f"{n}-published": space for n, space in spaces.items() if n.startswith("rode")}
        assert sweep["spaces"] == {**spaces, **twins}, name


def test_the_selected_rates_lie_in_their_spaces(tasks):
    """As what a sweep has selected must."""
    for name in json.loads(GOLDEN.read_text())["budgets"]:
        rates = {o["name"]: o["settings"] for o in tasks[name]["optimizers"]}
        for optimizer, space in tasks[name]["sweep"]["spaces"].items():
            for key, ends in space.items():
                if isinstance(ends, list):
                    value = float(rates[optimizer][key])
                    assert ends[0] <= value <= ends[1], f"{name} {optimizer} {key}"


def test_transfers_have_none(tasks):
    """The paper copies the rates of these tasks from another's sweep."""
    for name in ("qwen2-1.5b", "resnet50-cifar100", "resnet50-imagenet"):
        assert "sweep" not in tasks[name]
