# SPDX-License-Identifier: Apache-2.0
"""The command of a trial, `rode train` or `rode finetune`, and its process."""

import ctypes
import os
import pathlib
import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import IO, Any

from rode._command import Failed
from rode.sweep.outcome import Outcome, read_outcome
from rode.sweep.plan import Plan
from rode.sweep.space import Values

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Command:
    """`words` begin every trial: the program and its subcommand; `more` ends every one."""

    words: list[str]
    more: list[str]
    finetune: bool = False

    def line(self, plan: Plan, values: Values, folder: pathlib.Path) -> list[str]:
        words = [*self.words, "--optimizer", plan.optimizer, "--seed", str(plan.seed)]
        words += ["--steps", str(plan.steps), "--out", str(folder), "--resume"]
        interval = str(plan.eval_interval) if plan.eval_interval else ""
        if self.finetune:
            words += ["--eval-interval", interval] if interval else []
        else:
            words += ["--task", plan.task, "--quiet", "--no-tensorboard", "--keep", "1"]
            words += ["--set", f"train.eval_interval={interval}"] if interval else []
        for key, text in plan.space.settings(values).items():
            words += ["--set", f"{key}={text}"]
        return [*words, *self.more]


def train_command(rode: str, more: list[str]) -> Command:
    return Command([rode, "train"], more)


def finetune_command(more: list[str], models: bool) -> Command:
    """`models`: whether a trial keeps its checkpoints and its best model."""
    words = [sys.executable, "-m", "rode", "finetune"]
    return Command(words if models else [*words, "--trial"], more, finetune=True)


def _end_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class Process:
    """A running trial. A group of its own: Ctrl-C reaches it through stop() only. It ends with
    this process, and holds `lock` until it has ended."""

    def __init__(self, words: list[str], errors: pathlib.Path, lock: IO[Any]) -> None:
        self.words = words
        self.errors = errors
        environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
        try:
            with errors.open("w", encoding="utf-8") as file:
                self.child = subprocess.Popen(
                    words,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=file,
                    start_new_session=True,
                    preexec_fn=_end_with_parent,
                    pass_fds=(lock.fileno(),),
                    env=environment,
                )
        except OSError as error:
            raise Failed(
                f"[sweep] cannot run '{words[0]}' ({error.strerror}); give its path with --rode"
            ) from None

    def ended(self) -> bool:
        return self.child.poll() is not None

    def stop(self) -> None:
        """Asks it to save and end."""
        if not self.ended():
            self.child.terminate()

    def wait(self) -> None:
        self.child.wait()

    def outcome(self, plan: Plan, folder: pathlib.Path) -> Outcome:
        """Raises where the trial neither finished nor diverged."""
        result = read_outcome(folder, plan)
        if result is not None:
            return result
        text = self.errors.read_text("utf-8", "replace").strip()
        errors = [line for line in text.splitlines() if line.startswith("rode: error: ")]
        said = errors[-1].removeprefix("rode: error: ") if errors else text[-500:] or "no message"
        raise Failed(
            f"[sweep] a trial ended with exit code {self.child.returncode}: {said}; its command "
            f"was: {' '.join(self.words)}"
        )
