# SPDX-License-Identifier: Apache-2.0
"""What the subcommands of `python -m rode` share: errors, exit codes, files that are whole or
absent."""

import argparse
import json
import os
import pathlib
import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

DONE, FAILED, USAGE = 0, 1, 2


class Failed(Exception):
    """The work cannot be done: "[operation] subject; expectation; remedy". Exit code 1."""


class BadUsage(Failed):
    """What was asked for makes no sense. Exit code 2."""


class _Parser(argparse.ArgumentParser):
    """Argparse with this project's form of errors."""

    def error(self, message: str) -> NoReturn:
        raise BadUsage(f"[usage] {message}; see {self.prog} --help")


def parser(name: str, summary: str, examples: str) -> argparse.ArgumentParser:
    return _Parser(
        prog=f"python -m rode {name}",
        description=summary,
        epilog=f"examples:\n{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def note(text: str) -> None:
    print(f"rode: note: {text}", file=sys.stderr, flush=True)


def run(work: Callable[[], int]) -> int:
    """The exit code of a subcommand; errors go to standard error in one line."""
    try:
        return work()
    except Failed as error:
        print(f"rode: error: {error}", file=sys.stderr)
        return USAGE if isinstance(error, BadUsage) else FAILED
    except BrokenPipeError:  # such as `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE


def reason(error: BaseException) -> str:
    """An operating system's error in words; others by their first line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def sync(path: pathlib.Path) -> None:
    """Waits until a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_whole(path: pathlib.Path, text: str) -> None:
    """Replaces a file at once: readers see the old one or the new one."""
    temporary = path.with_name(f"{path.name}.tmp{os.getpid()}")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise Failed(
            f"[write] '{path}': {reason(error)}; what was there is unchanged; free space or choose "
            "another folder"
        ) from None


def write_json(path: pathlib.Path, value: Any) -> None:
    write_whole(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: pathlib.Path, what: str) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise Failed(
            f"[{what}] '{path}' cannot be read: {reason(error)}; expected a JSON file that this "
            "command wrote"
        ) from None


def whole_lines(path: pathlib.Path) -> Iterator[dict[str, Any]]:
    """The records of a log. A last line that a kill has cut is left out."""
    if not path.exists():
        return
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith("\n"):
                return
            try:
                yield json.loads(line)
            except ValueError as error:
                raise Failed(
                    f"[log] '{path}' line {number} is no JSON: {reason(error)}; restore the file, "
                    "or start in another folder"
                ) from None
