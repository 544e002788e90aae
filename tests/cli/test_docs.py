# SPDX-License-Identifier: Apache-2.0
"""The pages of docs/optimizers are what the headers and the option tables say."""

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def test_optimizer_pages_are_current(rode):
    done = subprocess.run(
        [sys.executable, ROOT / "tools/optimizer_docs.py", "--check", "--rode", str(rode.binary)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
