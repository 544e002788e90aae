# SPDX-License-Identifier: Apache-2.0
"""The command line tests share the trajectory tests' harness, problems and oracles."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "trajectory"))

import harness  # noqa: E402
from train_support import TASK, cannot_train  # noqa: E402


@pytest.fixture(scope="session")
def binary():
    path = harness.binary_path()
    if path.is_file():
        return path
    message = f"no binary at {path}: build it, or set RODE_BIN"
    if os.environ.get("RODE_ALLOW_MISSING") == "1":
        pytest.skip(message)
    pytest.fail(message, pytrace=False)


@pytest.fixture
def rode(binary, tmp_path):
    return harness.Rode(binary, tmp_path)


@pytest.fixture
def needs_training(rode):
    if cannot_train(rode):
        pytest.skip("this build cannot train")


@pytest.fixture
def task(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(TASK)
    return path
