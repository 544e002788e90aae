# SPDX-License-Identifier: Apache-2.0
"""File locks by which processes share a study; the system releases those of a process that ended."""

import fcntl
import os
import pathlib
from typing import IO, Any


def take(path: pathlib.Path, wait: bool) -> IO[Any] | None:
    """An open file that holds the lock until it is closed; None where another holds it."""
    file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644), "r+b")
    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file
