# SPDX-License-Identifier: Apache-2.0
"""The bytes that bench/small_lm.py trains on: read from xz text, or prepared as uint8 .npy."""

import lzma
import pathlib

import numpy as np

TRAIN_BYTES = 20_000_000
VALID_BYTES = 1_000_000


class NoData(Exception):
    """There is nothing to train on; the message says what is missing."""


def _read_text(files: list[pathlib.Path], count: int) -> np.ndarray:
    parts: list[bytes] = []
    missing = count
    for file in files:
        if missing <= 0:
            break
        with lzma.open(file) as stream:
            parts.append(stream.read(missing))
        missing -= len(parts[-1])
    return np.frombuffer(b"".join(parts), dtype=np.uint8)


def _load(folder: pathlib.Path, part: str, count: int) -> np.ndarray | None:
    prepared = folder / f"{part}.npy"
    if prepared.is_file():
        data = np.load(prepared, allow_pickle=False)
        if data.dtype != np.uint8 or data.ndim != 1:
            raise NoData(f"{prepared} holds {data.dtype} {data.shape}; expected uint8 in one row")
        return data[:count]
    files = sorted(folder.glob(f"{part}*.txt.xz"))
    return _read_text(files, count) if files else None


def load(
    folder: pathlib.Path, train_bytes: int = TRAIN_BYTES, valid_bytes: int = VALID_BYTES
) -> tuple[np.ndarray, np.ndarray]:
    """Training and validation bytes: train.npy and valid.npy, or train*.txt.xz and valid*.txt.xz."""
    parts = []
    for part, count in (("train", train_bytes), ("valid", valid_bytes)):
        data = _load(folder, part, count)
        if data is None or not data.size:
            raise NoData(f"no {part}.npy and no {part}*.txt.xz in {folder}")
        parts.append(data)
    return parts[0], parts[1]


def prepare(source: pathlib.Path, target: pathlib.Path, train_bytes: int, valid_bytes: int) -> None:
    """Writes what `load` reads from `source` as two small files that need no decompression."""
    train, valid = load(source, train_bytes, valid_bytes)
    target.mkdir(parents=True, exist_ok=True)
    for part, data in (("train", train), ("valid", valid)):
        np.save(target / f"{part}.npy", data)
        print(f"{target / part}.npy: {data.size:,} bytes")
