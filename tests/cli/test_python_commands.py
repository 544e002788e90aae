# SPDX-License-Identifier: Apache-2.0
"""Subcommands that are Python: words, environment and exit code pass through; what is missing is
named."""

import os
import subprocess
import sys
import textwrap

import pytest

FAILED = 1
COMMANDS = ("sweep", "finetune", "evaluate")


def call(rode, python, *words):
    return subprocess.run(
        [str(rode.binary), *words],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "RODE_PYTHON": str(python), "RODE_BIN": "another"},
    )


@pytest.fixture
def stand_in(tmp_path):
    """A Python that has everything, and prints what it is given. Exit code 7."""
    path = tmp_path / "python"
    path.write_text(
        textwrap.dedent(f"""\
        #!{sys.executable}
        import os, sys
        if sys.argv[1] == "-c":
            sys.exit(0)
        print(sys.argv[1:], os.environ["RODE_BIN"], sep="\\n")
        sys.exit(7)
        """)
    )
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    "name,words",
    [
        ("evaluate", []),
        ("finetune", ["--help"]),
        ("sweep", ["-h", "--version"]),
        ("sweep", ["ask", "--study", "s.jsonl", "--count=3"]),
        ("sweep", ["--task", "a b", "--set", "lr=1", "--set", "lr=2", "--", "--data", "--", "x"]),
        ("sweep", ["", "-x", "step", "train", "--unknown"]),
        ("sweep", ["--", "--help"]),
    ],
    ids=str,
)
def test_words_and_exit_code_pass_through(rode, stand_in, name, words):
    done = call(rode, stand_in, name, *words)
    assert done.returncode == 7, done.stderr
    shown, program = done.stdout.splitlines()
    assert shown == str(["-m", "rode", name, *words])
    assert os.path.samefile(program, rode.binary)


def test_a_python_that_is_missing_is_named(rode, tmp_path):
    done = call(rode, tmp_path / "none", "sweep", "--help")
    assert done.returncode == FAILED and done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    for word in (str(tmp_path / "none"), "install Python", "RODE_PYTHON"):
        assert word in done.stderr


@pytest.mark.parametrize(
    "has,missing", [((), "rode"), (("rode",), "torch")], ids=["no-rode", "no-torch"]
)
def test_a_package_that_is_missing_is_named(rode, tmp_path, monkeypatch, has, missing):
    """In an interpreter that sees the given packages only."""
    packages = tmp_path / "packages"
    for name in has:
        (packages / name).mkdir(parents=True)
        (packages / name / "__init__.py").write_text("")
    (packages / "nothing").mkdir(parents=True)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={packages} exec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    place = tmp_path / "place"
    (place / "rode").mkdir(parents=True)  # a folder of this name is not the package
    monkeypatch.chdir(place)
    done = call(rode, python, "sweep", "--task", "tiny-lm")
    assert done.returncode == FAILED, done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert f"has no package '{missing}'" in done.stderr and "pip install" in done.stderr


def test_they_are_listed(rode):
    shown = rode.call("--help").stdout
    for name in COMMANDS:
        assert f"\n  {name} " in shown
