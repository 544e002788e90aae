# SPDX-License-Identifier: Apache-2.0
"""Examples out of JSON lines, and the split into training and validation, made once and kept with
its digest."""

import bz2
import gzip
import hashlib
import json
import lzma
import pathlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

from rode._command import Failed, digest_of, note, read_json, reason, write_json, write_whole

_OPENERS: dict[str, Any] = {".xz": lzma.open, ".gz": gzip.open, ".bz2": bz2.open}
# Changing it changes the split.
_SPLIT_SEED = 20260
_SPLIT_FILES = ("train.jsonl", "validation.jsonl")


@dataclass(frozen=True)
class Example:
    prompt: str
    answer: str


def open_text(path: pathlib.Path) -> IO[str]:
    """A text file, compressed or not."""
    opener = _OPENERS.get(path.suffix, open)
    return opener(path, "rt", encoding="utf-8")  # type: ignore[no-any-return]


def rows_of(path: pathlib.Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line numbers and objects of a file of JSON lines. Empty lines are skipped."""
    number = 0
    try:
        with open_text(path) as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                try:
                    row = json.loads(line)
                except ValueError as error:
                    raise Failed(
                        f"[data] '{path}' line {number} is not JSON: {reason(error)}; expected "
                        "one object per line; correct or delete the line"
                    ) from None
                if not isinstance(row, dict):
                    raise Failed(
                        f"[data] '{path}' line {number} is a {type(row).__name__}; expected an "
                        "object with named fields; correct or delete the line"
                    )
                yield number, row
    except (OSError, EOFError, UnicodeError, lzma.LZMAError) as error:
        where = f" after line {number}" if number else ""
        raise Failed(
            f"[data] '{path}' cannot be read{where}: {reason(error)}; expected UTF-8 JSON lines, "
            "plain or as .xz, .gz or .bz2"
        ) from None


def text_field(path: pathlib.Path, number: int, row: dict[str, Any], field: str) -> str:
    value = row.get(field)
    if isinstance(value, str) and value.strip():
        return value
    has = f"it has {', '.join(sorted(row))}" if field not in row else f"got {value!r}"
    raise Failed(
        f"[data] '{path}' line {number}: field '{field}' must hold text; {has}; correct the "
        "line, or name the field with --prompt-field or --answer-field"
    )


def examples_of(path: pathlib.Path, prompt_field: str, answer_field: str) -> list[Example]:
    out = [
        Example(
            text_field(path, number, row, prompt_field), text_field(path, number, row, answer_field)
        )
        for number, row in rows_of(path)
    ]
    if not out:
        raise Failed(f"[data] '{path}' holds no examples; expected one JSON object per line")
    return out


def _text(examples: list[Example]) -> str:
    rows = ({"prompt": e.prompt, "answer": e.answer} for e in examples)
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


@dataclass(frozen=True)
class Split:
    train: list[Example]
    validation: list[Example]
    digest: str  # of both files, in hexadecimal


def _stored(folder: pathlib.Path, record: dict[str, Any]) -> Split:
    """The split of a folder, checked against its digest."""
    paths = [folder / name for name in _SPLIT_FILES]
    for path in paths:
        if not path.exists():
            raise Failed(f"[split] '{path}' is missing; delete '{folder}' to make the split again")
    digest = hashlib.sha256("".join(map(digest_of, paths)).encode()).hexdigest()
    if digest != record["digest"]:
        raise Failed(
            f"[split] the files in '{folder}' have the digest {digest[:16]}..., but split.json "
            f"records {str(record['digest'])[:16]}...; they were edited; restore them, or delete "
            "the folder to make the split again"
        )
    train, validation = (examples_of(path, "prompt", "answer") for path in paths)
    return Split(train, validation, digest)


def split_of(
    folder: pathlib.Path,
    source: pathlib.Path,
    prompt_field: str,
    answer_field: str,
    validation: int,
) -> Split:
    """The split that a folder holds; made from `source` where the folder holds none, so that all
    runs and optimizers have the same one."""
    record_path = folder / "split.json"
    # By content, not by name: the file may have moved.
    asked = {"source": digest_of(source), "prompt_field": prompt_field,
             "answer_field": answer_field, "validation": validation}  # fmt: skip
    if record_path.exists():
        record = read_json(record_path, "split")
        for key, value in asked.items():
            if record.get(key) != value:
                raise Failed(
                    f"[split] '{folder}' was made with {key} = {record.get(key)!r}, now it is "
                    f"{value!r}; use the same data and fields, or another --split folder"
                )
        return _stored(folder, record)
    examples = examples_of(source, prompt_field, answer_field)
    if not 0 < validation < len(examples):
        raise Failed(
            f"[split] {validation} of {len(examples)} examples for validation; expected 1 to "
            f"{len(examples) - 1}; set --validation"
        )
    order = list(range(len(examples)))
    random.Random(_SPLIT_SEED).shuffle(order)
    held = set(order[:validation])
    parts = (
        [e for i, e in enumerate(examples) if i not in held],
        [e for i, e in enumerate(examples) if i in held],
    )
    folder.mkdir(parents=True, exist_ok=True)
    for name, part in zip(_SPLIT_FILES, parts, strict=True):
        write_whole(folder / name, _text(part))
    paths = [folder / name for name in _SPLIT_FILES]
    digest = hashlib.sha256("".join(map(digest_of, paths)).encode()).hexdigest()
    counts = {"train": len(parts[0]), "shuffle_seed": _SPLIT_SEED, "digest": digest}
    write_json(record_path, {**asked, **counts})
    note(
        f"split of {source.name}: {len(parts[0])} + {len(parts[1])} examples, digest {digest[:16]}"
    )
    return Split(parts[0], parts[1], digest)
