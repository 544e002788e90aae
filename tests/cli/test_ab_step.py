# SPDX-License-Identifier: Apache-2.0
"""bench/ab_step.py with a small script in place of `rode`: the rows it takes, and their ratios."""

import json
import pathlib
import subprocess
import sys

import pytest

TOOL = pathlib.Path(__file__).resolve().parent.parent.parent / "bench" / "ab_step.py"
# Milliseconds from the program's name, another every time it is called.
STAND_IN = """#!{python}
import json, pathlib, sys
calls = pathlib.Path(sys.argv[0] + ".calls")
times = {{"old": [4.0, 2.0, 6.0], "new": [3.0, 1.0, 5.0]}}[pathlib.Path(sys.argv[0]).name]
count = len(calls.read_text()) if calls.exists() else 0
calls.write_text("x" * (count + 1))
print(json.dumps({{"median_ms": times[count % 3]}}))
"""


@pytest.fixture
def compare(tmp_path):
    programs = [tmp_path / "old", tmp_path / "new"]
    for path in programs:
        path.write_text(STAND_IN.format(python=sys.executable))
        path.chmod(0o755)

    def run(*words):
        command = [sys.executable, TOOL, *programs, "--out", tmp_path / "ab.json", *words]
        return subprocess.run(
            [str(word) for word in command], check=False, capture_output=True, text=True, timeout=60
        )

    return run


def test_only_chooses_among_the_rows_of_both_and_of_the_new_program(compare, tmp_path):
    done = compare("--parts", "cuda", "--rounds", 1, "--only", "resnet50 rode")
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "ab.json").read_text())["rows"]
    both = [name for name, row in rows.items() if row["old"]]
    new = [name for name, row in rows.items() if not row["old"]]
    assert len(both) == 1 and len(new) == 1 and "coefficients=four" in new[0]
    assert all("resnet50 rode" in name for name in rows)


def test_only_that_matches_nothing_is_refused(compare, tmp_path):
    refused = compare("--parts", "cuda", "--only", "no such row")
    assert refused.returncode == 2 and "'no such row'" in refused.stderr
    assert not (tmp_path / "ab.json").exists()


def test_a_row_has_the_ratio_of_medians_and_that_of_the_fastest(compare, tmp_path):
    words = ["--parts", "cuda", "--only", "1.5b muon-rms", "--new-rounds", 0]
    assert compare(*words, "--rounds", 3, "--title", "a title").returncode == 0
    assert "| ratio of medians 0.7500, of the fastest 0.5000" in (tmp_path / "ab.txt").read_text()
    before = (tmp_path / "ab.txt").read_text()
    assert compare("--rounds", 0).returncode == 0  # writes the same again, with its title
    assert (tmp_path / "ab.txt").read_text() == before and before.startswith("# a title\n")
