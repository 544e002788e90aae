# SPDX-License-Identifier: Apache-2.0
"""The package as a whole: stubs, documentation, examples, `python -m rode`."""

import ast
import inspect
import runpy
import subprocess
import sys

import pytest
import torch
from conftest import KINDS, ROOT

import rode
from rode import _engine, _options


def test_stubs_name_what_the_module_has():
    tree = ast.parse((ROOT / "python/rode/_engine.pyi").read_text("utf-8"))
    kinds = (ast.FunctionDef, ast.ClassDef)
    names = {node.name for node in tree.body if isinstance(node, kinds)}
    assert names == {name for name in dir(_engine) if not name.startswith("_")}
    stub = next(node for node in tree.body if getattr(node, "name", "") == "Engine")
    methods = {node.name for node in stub.body if isinstance(node, ast.FunctionDef)}
    assert methods - {"__init__"} == {n for n in dir(_engine.Engine) if not n.startswith("_")}


def test_types_check(tmp_path):
    pytest.importorskip("mypy", reason="mypy is not installed")
    options = [
        "--strict",
        "--allow-untyped-decorators",
        "--follow-imports=silent",
        f"--cache-dir={tmp_path}",
    ]
    command = [sys.executable, "-m", "mypy", *options, str(ROOT / "python/rode")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_every_option_of_the_engine_has_the_same_default_here(kind):
    assert "::\n" in kind.__doc__  # the recurrence
    name = {"MARSM": "mars-m"}.get(kind.__name__, kind.__name__.lower())
    engine = _options.complete(name, {})
    parameters = inspect.signature(kind).parameters
    own = {"params", "route", "couple_lr_rho"}
    by_torch = {}
    if kind in (rode.AdamW, rode.SGD):  # torch's own arguments, with its defaults
        by_torch = inspect.signature(getattr(torch.optim, kind.__name__)).parameters
        own |= by_torch.keys() - engine.keys()
    unsupported = {"merge_dims", "precondition_1d", "normalize_grads"}  # only false
    if kind is rode.SOAP:
        unsupported.add("state_dtype")  # only fp32
    assert parameters.keys() - own == engine.keys() - unsupported
    for key, value in engine.items():
        if key in unsupported or key in by_torch:
            continue
        if parameters[key].default is not None:
            assert parameters[key].default == value, key


def test_the_module_shows_versions_and_optimizers():
    command = [sys.executable, "-m", "rode"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert rode.__version__ in done.stdout
    assert "rode-snr" in done.stdout


def test_the_example_learns(capsys):
    example = runpy.run_path(str(ROOT / "examples/pytorch_quickstart.py"))
    assert example["main"]() < 0.01
    assert "matrix" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("example", "packages"),
    [("huggingface_trainer", ["transformers", "accelerate"]), ("lightning_module", ["lightning"])],
    ids=["transformers", "lightning"],
)
@pytest.mark.filterwarnings("ignore")
def test_other_trainers_run_unchanged(example, packages):
    for package in packages:
        pytest.importorskip(package)
    first, last = runpy.run_path(str(ROOT / "examples" / f"{example}.py"))["main"]()
    assert last < 0.8 * first
