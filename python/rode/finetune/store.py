# SPDX-License-Identifier: Apache-2.0
"""A run's folder: its settings, its log, checkpoints that are whole or absent, the best
model.

    run.json  log.jsonl  result.json  checkpoint-000200/  best -> best-000100/
"""

import fcntl
import os
import pathlib
import shutil
from collections.abc import Callable
from typing import Any

import torch

from rode._command import (
    BadUsage,
    Failed,
    bytes_text,
    free_bytes,
    is_full,
    read_json,
    reason,
    sync,
    write_json,
)

_PART_BYTES = 4_000_000_000  # of one file: so much is copied to the host at a time
# May differ between a run and its continuation.
_FREE_KEYS = ("device", "threads", "checkpoint_interval", "versions")


def lock(folder: pathlib.Path) -> Any:
    """Keeps a second process out of the folder until the file is closed or the process ends."""
    folder.mkdir(parents=True, exist_ok=True)
    file = open(folder / "lock", "w", encoding="ascii")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise Failed(
            f"[run] another process works in '{folder}'; wait for it, or use another --out"
        ) from None
    return file


def begin(folder: pathlib.Path, asked: dict[str, Any], resume: bool) -> None:
    """Writes run.json, or compares it with an earlier one."""
    path = folder / "run.json"
    if not path.exists():
        write_json(path, asked)
        return
    if not resume:
        raise BadUsage(
            f"[run] '{folder}' holds a run; give --resume to continue it, or another --out"
        )
    before = read_json(path, "run")
    for key in sorted((before.keys() | asked.keys()) - set(_FREE_KEYS)):
        now = _as_json(asked.get(key))
        if before.get(key) != now:
            raise BadUsage(
                f"[run] '{folder}' was started with {key} = {before.get(key)!r}, but now it is "
                f"{now!r}; continue with the same value, or use another --out"
            )


def _as_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _as_json(item) for key, item in value.items()}
    return [_as_json(item) for item in value] if isinstance(value, (list, tuple)) else value


def _write_folder(target: pathlib.Path, fill: Callable[[pathlib.Path], None], kept: str) -> None:
    """Fills a folder under a temporary name, then renames it."""
    temporary = target.with_name(f"{target.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        fill(temporary)
        for path in (*temporary.rglob("*"), temporary):
            sync(path)
        shutil.rmtree(target, ignore_errors=True)
        os.replace(temporary, target)
        sync(target.parent)
    except Exception as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(error, OSError) or is_full(error):
            what = "the disk is full" if is_full(error) else reason(error)
            raise Failed(
                f"[checkpoint] '{target}' cannot be written: {what}; {kept}; free space, then "
                "continue with --resume"
            ) from None
        raise


def _parts(tensors: dict[str, torch.Tensor]) -> list[dict[str, torch.Tensor]]:
    out: list[dict[str, torch.Tensor]] = [{}]
    size = 0
    for name, tensor in tensors.items():
        bytes_ = tensor.numel() * tensor.dtype.itemsize
        if out[-1] and size + bytes_ > _PART_BYTES:
            out.append({})
            size = 0
        out[-1][name] = tensor
        size += bytes_
    return out


def checkpoints(folder: pathlib.Path) -> list[pathlib.Path]:
    """Whole ones, oldest first."""
    return sorted(p for p in folder.glob("checkpoint-*") if p.suffix != ".tmp")


def save(folder: pathlib.Path, model: Any, optimizer: Any, state: dict[str, Any]) -> None:
    """A checkpoint of `state["step"]`; older ones are deleted when it is whole."""
    from safetensors.torch import save_file

    def fill(target: pathlib.Path) -> None:
        tensors = {f"param.{name}": p.detach().contiguous() for name, p in model.named_parameters()}
        tensors.update(optimizer.named_state())
        for number, part in enumerate(_parts(tensors)):
            save_file(part, str(target / f"part-{number:05}.safetensors"), optimizer.metadata())
        write_json(target / "state.json", state)

    before = checkpoints(folder)
    kept = f"'{before[-1].name}' is whole" if before else "no earlier checkpoint exists"
    target = folder / f"checkpoint-{state['step']:06}"
    _write_folder(target, fill, kept)
    for old in before:
        if old != target:
            shutil.rmtree(old, ignore_errors=True)


@torch.no_grad()
def load(path: pathlib.Path, model: Any, optimizer: Any) -> dict[str, Any]:
    """The state of a checkpoint, into the model and the optimizer."""
    from safetensors import SafetensorError, safe_open

    state = dict(read_json(path / "state.json", "checkpoint"))
    tensors: dict[str, torch.Tensor] = {}
    metadata: dict[str, str] = {}
    try:
        for part in sorted(path.glob("part-*.safetensors")):
            with safe_open(str(part), framework="pt") as file:
                metadata = file.metadata()
                tensors.update((name, file.get_tensor(name)) for name in file.keys())
        for name, p in model.named_parameters():
            p.copy_(tensors.pop(f"param.{name}"))
    except (OSError, SafetensorError, KeyError, RuntimeError) as error:
        raise Failed(
            f"[checkpoint] '{path}' is damaged: {reason(error)}; delete it and start again with "
            "another --out"
        ) from None
    optimizer.load_named_state(tensors, metadata)
    return state


def save_best(
    folder: pathlib.Path, model: Any, tokenizer: Any, step: int, about: dict[str, Any]
) -> None:
    """The model as transformers stores it, reached through the link `best`."""

    def fill(target: pathlib.Path) -> None:
        model.save_pretrained(str(target))
        tokenizer.save_pretrained(str(target))
        write_json(target / "finetune.json", about)

    before = list(folder.glob("best-*"))
    kept = "the best model so far is kept" if before else "no earlier model exists"
    _write_folder(folder / f"best-{step:06}", fill, kept)
    keep_best(folder, step, set())


def keep_best(folder: pathlib.Path, step: int, also: set[int]) -> None:
    """Points `best` at the model of a step. With `also`, deletes all others except those: the last
    checkpoint may need an older one where a run continues."""
    target = folder / f"best-{step:06}"
    if target.is_dir():
        link = folder / "best.tmp"
        link.unlink(missing_ok=True)
        link.symlink_to(target.name)
        os.replace(link, folder / "best")
    if also:
        wanted = {f"best-{number:06}" for number in (step, *also)}
        for old in folder.glob("best-*"):
            if old.name not in wanted:
                shutil.rmtree(old, ignore_errors=True)


def forget_checkpoints(folder: pathlib.Path) -> None:
    """Of a run that needs none any more."""
    for path in checkpoints(folder):
        shutil.rmtree(path, ignore_errors=True)


def check_room(folder: pathlib.Path, weights: int, state: int, models: bool) -> None:
    """Two checkpoints are on the disk while one replaces the other; and two models, where they are
    kept."""
    held = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file() and not f.is_symlink())
    needed = 2 * (weights + state) + (2 * weights if models else 0) - held
    room = free_bytes(folder)
    if needed > room:
        raise Failed(
            f"[disk] '{folder}' has {bytes_text(room)} of free space; checkpoints and the best "
            f"model need {bytes_text(needed)}; free some space, or use another --out"
        )
