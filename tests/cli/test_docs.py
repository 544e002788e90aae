# SPDX-License-Identifier: Apache-2.0
"""What is written from the headers and the option tables is what they say."""

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


@pytest.mark.parametrize("tool", ["optimizer_docs.py", "python_classes.py"])
def test_what_is_generated_is_current(rode, tool):
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / tool, "--check", "--rode", str(rode.binary)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
