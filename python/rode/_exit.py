# SPDX-License-Identifier: Apache-2.0
"""Engines end before the interpreter: torch may hold an optimizer for longer than that lives."""

import atexit
import weakref
from contextlib import suppress
from typing import Any

# A hook on a parameter or of all modules is kept by torch outside of the garbage collector's
# sight, and the optimizer with it where the hook uses one.
_built: "weakref.WeakSet[Any]" = weakref.WeakSet()


def release_at_exit(optimizer: Any) -> None:
    _built.add(optimizer)


@atexit.register
def _release() -> None:
    for optimizer in list(_built):
        with suppress(Exception):  # a device that is gone
            optimizer._note_steps()
        optimizer._captured.clear()
        optimizer._binding = None
