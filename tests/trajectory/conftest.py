# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the trajectory tests: the binary, found once, with a scratch directory."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import harness  # noqa: E402


@pytest.fixture(scope="session")
def binary():
    path = harness.step_binary_path()
    if path.is_file():
        return path
    message = f"no binary at {path}: build it, or set RODE_BIN"
    if os.environ.get("RODE_ALLOW_MISSING") == "1":
        pytest.skip(message)
    pytest.fail(message, pytrace=False)


@pytest.fixture
def rode(binary, tmp_path):
    return harness.Rode(binary, tmp_path)
