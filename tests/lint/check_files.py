# SPDX-License-Identifier: Apache-2.0
"""Checks every text file's shape: SPDX line, purpose sentence, length, whitespace.

Usage: check_files.py [ROOT]
"""

import pathlib
import re
import sys

import source_tree

# A longer file is a sign that two things live in it.
MAX_LINES = 400
SPDX = "SPDX-License-Identifier: Apache-2.0"
SOURCE_SUFFIXES = source_tree.CPP_SUFFIXES | {".py", ".sh", ".cmake"}
TEXT_SUFFIXES = SOURCE_SUFFIXES | {".md", ".txt", ".json", ".toml", ".in", ".yml"}
TEXT_NAMES = {"Makefile", ".gitignore", ".clang-format", ".clang-tidy", ".editorconfig", "run"}
TODO = re.compile(r"\bTODO\b(?!\(#\d+\))")


def is_source(file: pathlib.Path) -> bool:
    named = file.name in ("CMakeLists.txt", "Makefile") or file == pathlib.Path(".ci/run")
    return named or file.suffix in SOURCE_SUFFIXES or file.name.endswith(".cmake.in")


def is_text(file: pathlib.Path) -> bool:
    return file.suffix in TEXT_SUFFIXES or file.name in TEXT_NAMES


def head_problems(lines: list[str]):
    """The licence line first (after a #! line), then what the file is for."""
    start = 1 if lines and lines[0].startswith("#!") else 0
    if len(lines) <= start or SPDX not in lines[start]:
        yield start + 1, f"expected '{SPDX}'"
        return
    comment = re.compile(r'^\s*(//|#(?!pragma|include)|"""|/\*)\s*\S')
    if len(lines) <= start + 1 or not comment.match(lines[start + 1]):
        yield start + 2, "expected a sentence that says what the file is for"


def line_problems(file: pathlib.Path, lines: list[str], source: bool):
    for number, line in enumerate(lines, start=1):
        if line != line.rstrip():
            yield number, "trailing whitespace"
        if "\t" in line and file.name != "Makefile":
            yield number, "tab"
        if source and file.parts[:2] != ("tests", "lint") and TODO.search(line):
            yield number, "TODO without an issue number; write TODO(#12)"


def shell_problems(lines: list[str]):
    """A `local` that names a readonly variable of its script ends the script where it runs."""
    fixed = {match[1] for line in lines if (match := re.match(r"readonly (\w+)", line))}
    for number, line in enumerate(lines, start=1):
        if match := re.match(r"\s+local (.*)", line):
            for name in re.findall(r"(?:^|\s)(\w+)(?==|\s|$)", match[1]):
                if name in fixed:
                    yield number, f"local '{name}' has the name of a readonly variable"


def problems_of(file: pathlib.Path, text: str):
    source = is_source(file)
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    elif text:
        yield len(lines), "no newline at the end of the file"
    if text.endswith("\n\n"):
        yield len(lines), "blank line at the end of the file"
    if source:
        yield from head_problems(lines)
    if source and len(lines) > MAX_LINES:
        yield MAX_LINES + 1, f"{len(lines)} lines; more than {MAX_LINES}: divide the file"
    if file.suffix == ".sh" or file == pathlib.Path(".ci/run"):
        yield from shell_problems(lines)
    yield from line_problems(file, lines, source)


def main() -> None:
    root = pathlib.Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else source_tree.ROOT
    problems = []
    checked = 0
    for file in source_tree.files(root):
        if not (is_source(file) or is_text(file)):
            continue
        checked += 1
        text = (root / file).read_text("utf-8")
        problems += [f"{file}:{number}: {what}" for number, what in problems_of(file, text)]
    source_tree.finish("check_files", checked, problems)


if __name__ == "__main__":
    main()
