# SPDX-License-Identifier: Apache-2.0
"""What the subcommands of `python -m rode` share: errors, exit codes, files that are whole or
absent."""

import argparse
import errno
import hashlib
import json
import os
import pathlib
import shutil
import sys
from collections.abc import Callable, Iterator
from typing import IO, Any, NoReturn

import torch

from rode import _engine

DONE, FAILED, USAGE = 0, 1, 2


class Failed(Exception):
    """The work cannot be done: "[operation] subject; expectation; remedy". Exit code 1."""


class BadUsage(Failed):
    """The request makes no sense. Exit code 2."""


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
    except torch.cuda.OutOfMemoryError as error:
        print(
            f"rode: error: [memory] the device's memory is exhausted: {reason(error)}; what was "
            "written is kept; use a shorter --length or a smaller batch and --resume",
            file=sys.stderr,
        )
        return FAILED
    except _engine.Error as error:
        print(f"rode: error: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("rode: note: interrupted; --resume continues", file=sys.stderr)
        return FAILED
    except BrokenPipeError:  # such as `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except OSError as error:
        where = "" if error.filename is None else f"'{error.filename}': "
        print(
            f"rode: error: [files] {where}{reason(error)}; what was written before is kept; correct "
            "the path or its permissions, or free space",
            file=sys.stderr,
        )
        return FAILED


def reason(error: BaseException) -> str:
    """An operating system's error in words; others by their first line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def is_full(error: BaseException) -> bool:
    """Whether a write failed because there is no room. safetensors gives the text only."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    return any(f"os error {n}" in str(error) for n in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG))


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
                    f"[log] '{path}' line {number} is not JSON: {reason(error)}; restore the "
                    "file, or start in another folder"
                ) from None


class Lines:
    """A log of JSON lines, each written at once."""

    def __init__(self, path: pathlib.Path, kept: list[dict[str, Any]] | None = None) -> None:
        """`kept`: what stays of an earlier log; None begins an empty one."""
        self.path = path
        write_whole(path, "".join(self.line(record) for record in kept or []))
        self.file: IO[str] = open(path, "a", encoding="utf-8")

    @staticmethod
    def line(record: dict[str, Any]) -> str:
        return json.dumps(record, ensure_ascii=False) + "\n"

    def add(self, record: dict[str, Any]) -> None:
        try:
            self.file.write(self.line(record))
            self.file.flush()
        except OSError as error:
            raise Failed(
                f"[write] '{self.path}': {reason(error)}; earlier lines are kept; free space and "
                "give --resume"
            ) from None

    def close(self) -> None:
        try:
            self.file.close()
        except OSError:  # what `add` has reported
            pass


def digest_of(path: pathlib.Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() if sys.version_info >= (3, 11) else (
            hashlib.sha256(file.read()).hexdigest()
        )  # fmt: skip


def free_bytes(folder: pathlib.Path) -> int:
    """Room on the disk of a folder that may not exist yet."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def bytes_text(count: float) -> str:
    """In powers of 10, as the paper's sizes of states."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if abs(count) < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.2f} {unit}"
        count /= 1000
    return ""
