# SPDX-License-Identifier: Apache-2.0
"""Lists the repository's own files for the checks of this folder, without needing git."""

import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
CPP_SUFFIXES = {".h", ".cpp", ".cu", ".cuh"}
SKIPPED_FOLDERS = {".git", ".venv", ".cache", "build", "__pycache__"}


def files(root: pathlib.Path):
    """Yields every file below root, sorted, as a path relative to it."""
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = sorted(
            name
            for name in subfolders
            if name not in SKIPPED_FOLDERS and not name.endswith("_cache")
        )
        for name in sorted(names):
            yield pathlib.Path(folder, name).relative_to(root)


def finish(check: str, checked: int, problems: list[str]) -> None:
    """Prints the problems as file:line and ends the program with the verdict."""
    for problem in problems:
        print(problem)
    print(f"{check}: {checked} files, {len(problems)} problems")
    sys.exit(1 if problems else 0)
