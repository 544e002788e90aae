# SPDX-License-Identifier: Apache-2.0
"""The package as a whole: stubs, documentation, examples, `python -m rode`."""

import ast
import inspect
import re
import runpy
import shutil
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


def test_the_wheel_builds_nothing_that_it_does_not_hold():
    """Of the build that `pip install .` left: what its targets are made from."""
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}-*"
    plan = next((ROOT / "build/python").glob(f"{tag}/build.ninja"), None)
    if plan is None or shutil.which("ninja") is None:
        pytest.skip("no build of `pip install .` with ninja here")
    tomllib = pytest.importorskip("tomllib")
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    targets = settings["tool"]["scikit-build"].get("build", {}).get("targets", ["all"])
    command = ["ninja", "-C", str(plan.parent), "-t", "inputs", *targets]
    inputs = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    sources = [path for path in inputs if path.endswith((".cpp", ".cu"))]
    for joined in (path for path in inputs if path.endswith(".cxx")):  # units of several files
        sources += re.findall(r'#include "(.*)"', (plan.parent / joined).read_text())
    assert any(path.endswith("src/optim/rode.cpp") for path in sources)
    folders = ("src/lab/", "src/reference/", "apps/", "tests/", "bench/", "adapters/")
    assert [path for path in sources if any(folder in path for folder in folders)] == []


_HOLDS_AN_OPTIMIZER = """
import threading
import torch
import rode
from torch.optim.optimizer import register_optimizer_step_post_hook

for place in range(4):
    model = torch.nn.Linear(4, 4)
    optimizer = rode.AdamW(model)
    hook = lambda *_, optimizer=optimizer: optimizer.defaults and None
    if place == 0:
        model.weight.register_post_accumulate_grad_hook(hook)
    elif place == 1:
        register_optimizer_step_post_hook(hook)
    elif place == 2:
        torch.nn.modules.module.register_module_forward_hook(hook)
    else:
        forever = threading.Event()
        threading.Thread(target=lambda: forever.wait() and optimizer, daemon=True).start()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""


def test_a_hook_that_holds_an_optimizer_leaves_nothing_to_say_at_exit():
    command = [sys.executable, "-c", _HOLDS_AN_OPTIMIZER]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


_FAILS_TO_LOAD = """
import sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "rode._engine":
            raise kind(text, name=name)

sys.meta_path.insert(0, Finder())
for kind, text in [
    (ImportError, "libdnnl.so.2: cannot open shared object file: No such file or directory"),
    (ImportError, "libopenblas.so.0: cannot open shared object file: No such file or directory"),
    (ImportError, "libfmt.so.9: cannot open shared object file: No such file or directory"),
    (ImportError, "/x/_engine.so: undefined symbol: dnnl_memory_create"),
    (ModuleNotFoundError, "No module named 'rode._engine'"),
]:
    try:
        import rode
    except ImportError as error:
        print(error)
"""


def test_a_library_that_is_missing_is_named_with_its_remedy():
    command = [sys.executable, "-c", _FAILS_TO_LOAD]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 5
    for line, file, package in zip(
        lines,
        ("libdnnl.so.2", "libopenblas.so.0", "libfmt.so.9"),
        ("libdnnl2", "libopenblas0-openmp", "libfmt9"),
    ):
        assert line.startswith(f"[import] the engine needs {file}, which was not found"), line
        assert f"apt install {package})" in line, line
        assert "cannot open shared object" in line
    assert "does not fit the libraries" in lines[3] and "dnnl_memory_create" in lines[3]
    assert "holds no engine" in lines[4]
    assert all("pip install" in line for line in lines)


@pytest.mark.parametrize("kind", KINDS)
def test_every_option_of_the_engine_has_the_same_default_here(kind):
    assert "::\n" in kind.__doc__  # the recurrence
    name = {"MARSM": "mars-m"}.get(kind.__name__, kind.__name__.lower())
    engine = _options.complete(name, {})
    parameters = inspect.signature(kind).parameters
    own = {
        "params",
        "route",
        "couple_lr_rho",
        "on_non_finite",
        "process_group",
        "timeout",
        "preset",
    }
    by_torch = {}
    if kind in (rode.AdamW, rode.SGD):  # torch's own arguments, with its defaults
        by_torch = inspect.signature(getattr(torch.optim, kind.__name__)).parameters
        own |= by_torch.keys() - engine.keys()
    unsupported = {"state_dtype"} if kind is rode.SOAP else set()  # only fp32
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
