# SPDX-License-Identifier: Apache-2.0
"""`rode tasks`: the list, one task, and a wrong key with its line."""

import json
from pathlib import Path

import pytest

FAILED, USAGE = 1, 2
MINE = """title = "Mine"
[model]
kind = "gpt2"
layers = 1
width = 8
heads = 2
vocab_size = 257
positions = 16
[data]
kind = "tokens"
path = "text"
sequence = 16
[train]
steps = 10
batch = 4
eval_interval = 5
routing = "language"
[optimizers.adamw]
lr = 1e-3
source = "guess"
"""


@pytest.fixture(autouse=True)
def needs_lab(rode):
    if "no lab" in rode.call("tasks").stderr:
        pytest.skip("this build has no lab")


def test_lists_and_shows(rode):
    listed = rode.call("tasks")
    assert listed.returncode == 0
    tasks = json.loads(rode.call("tasks", "--json").stdout)["tasks"]
    for task in tasks:
        assert task["name"] in listed.stdout
        shown = rode.call("tasks", task["name"])
        assert shown.returncode == 0 and task["title"] in shown.stdout
    by_name = {task["name"]: task for task in tasks}
    qwen = by_name["qwen2-114m"]
    assert qwen["train"]["steps"] == 4000 and qwen["train"]["warmup"] == 200
    rates = {o["name"]: o["settings"] for o in qwen["optimizers"]}
    assert float(rates["rode"]["lr_rho"]) == 2.438e-3
    assert float(rates["rode-snr"]["lr"]) == 4.544e-3


def test_every_file_of_the_tree_is_part_of_the_program(rode):
    folder = Path(__file__).resolve().parents[2] / "src" / "lab" / "task" / "tasks"
    tasks = json.loads(rode.call("tasks", "--json").stdout)["tasks"]
    assert sorted(task["name"] for task in tasks) == sorted(p.stem for p in folder.glob("*.toml"))


def test_a_file_of_ones_own(rode, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(MINE)
    shown = json.loads(rode.call("tasks", path, "--json").stdout)
    assert shown["name"] == "mine" and shown["model"]["mlp_width"] == 32


def test_what_is_printed_is_a_file_of_the_same_task(rode, tmp_path):
    tasks = json.loads(rode.call("tasks", "--json").stdout)["tasks"]
    for task in tasks:
        copy = tmp_path / f"{task['name']}.toml"
        copy.write_text(rode.call("tasks", task["name"]).stdout)
        done = rode.call("tasks", copy, "--json")
        assert done.returncode == 0, done.stderr
        again = json.loads(done.stdout)
        assert {**again, "source": ""} == {**task, "source": ""}
    # The values of the JSON are those that the parser takes, key by key.
    gpt2 = next(task for task in tasks if task["name"] == "gpt2")
    for section in ("model", "data", "train"):
        for key, value in gpt2[section].items():
            text = rode.call("tasks", "gpt2").stdout
            assert f"\n{key} = {json.dumps(value)}\n" in text.split(f"[{section}]")[1]


@pytest.mark.parametrize("name", ["../../esc", "a/b", "..", "-x", "a b", "x\\n"])
def test_a_name_is_not_a_path(rode, tmp_path, name):
    path = tmp_path / "mine.toml"
    path.write_text(MINE.replace("[optimizers.adamw]", f'[optimizers."{name}"]\noptimizer="adamw"'))
    done = rode.call("tasks", path)
    assert done.returncode == FAILED and "letters (a-z, A-Z), digits" in done.stderr, done.stderr


def test_sizes_have_limits(rode, tmp_path):
    path = tmp_path / "mine.toml"
    for old, new in (
        ("layers = 1", "layers = 1000000000"),
        ("width = 8", "width = 1048576"),
    ):
        path.write_text(MINE.replace(old, new))
        done = rode.call("tasks", path)
        key, value = new.split(" = ")
        assert done.returncode == FAILED
        assert f"'{key}' is {value}" in done.stderr and "from 1 to" in done.stderr, done.stderr


def test_a_wrong_key_names_line_and_nearest(rode, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(MINE.replace("batch = 4", "batches = 4"))
    done = rode.call("tasks", path)
    assert done.returncode == FAILED
    for word in ("mine.toml", "batch"):
        assert word in done.stderr
    path.write_text(MINE.replace("batch = 4", "batch = 4\nwarm_up = 3"))
    done = rode.call("tasks", path)
    for word in ("line 16", "'warm_up'", "did you mean 'warmup'"):
        assert word in done.stderr, done.stderr
    assert rode.call("tasks", "tiny-ml").returncode == USAGE


def test_rates_are_those_of_the_papers_tables(rode):
    golden = Path(__file__).resolve().parents[1] / "lab" / "golden" / "paper_rates.json"
    table = json.loads(golden.read_text())
    listed = json.loads(rode.call("optimizers", "--json").stdout)["optimizers"]
    defaults = {
        o["name"]: {option["key"]: option["default"] for option in o["options"]} for o in listed
    }
    tasks = {t["name"]: t for t in json.loads(rode.call("tasks", "--json").stdout)["tasks"]}
    assert len(table["rows"]) == 34
    for task, name, *values in table["rows"]:
        entries = {o["name"]: o for o in tasks[task]["optimizers"]}
        for entry in (entries[name], entries.get(f"{name}-published")):
            if entry is None:
                continue
            options = {**defaults[entry["optimizer"]], **entry["settings"]}
            for key, value in zip(table["columns"][2:], values, strict=True):
                where = f"{task} {entry['name']} {key}"
                if value is None or (key == "weight_decay" and value == 0):
                    assert float(options.get(key, 0)) == 0, where
                else:
                    assert float(options[key]) == value, where


def test_every_variant_that_iterates_has_a_published_twin(rode):
    papers = ("gpt2", "qwen2-114m", "qwen2-1.5b", "resnet50-cifar100", "resnet50-imagenet")
    for task in papers:
        entries = {
            o["name"]: o
            for o in json.loads(rode.call("tasks", task, "--json").stdout)["optimizers"]
        }
        for name, entry in entries.items():
            settings = entry["settings"]
            rode_family = entry["optimizer"].startswith("rode")
            iterates = (
                settings.get("conditioner") != "none" and settings.get("direction") != "fixed"
            )
            if not rode_family or not iterates or name.endswith("-published"):
                continue
            twin = entries[f"{name}-published"]
            assert twin["optimizer"] == entry["optimizer"]
            assert twin["settings"] == {**settings, "reproject": "every"}, f"{task} {name}"
