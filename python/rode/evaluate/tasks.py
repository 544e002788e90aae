# SPDX-License-Identifier: Apache-2.0
"""The four benchmarks of the paper: their files, their questions, what a right answer is."""

import pathlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rode._command import BadUsage, Failed
from rode.evaluate.answers import extract
from rode.finetune.data import rows_of, text_field

LETTERS = "ABCDEFGHIJ"
# The paper's prompt is not published; this one is fixed.
_CHOICE = (
    "The following is a multiple choice question. Answer with the letter of the correct option.\n\n"
    "{question}\n{options}"
)


@dataclass(frozen=True)
class Question:
    index: int  # from 0, in the file's order
    text: str
    reference: str
    options: int = 0  # how many letters; 0: the answer is written


@dataclass(frozen=True)
class Task:
    name: str
    label: str
    file: str  # its name in a folder of data, without the ending
    paper_count: int
    read: Callable[[pathlib.Path, int, dict[str, Any]], tuple[str, str, int]]
    written: bool  # the answer is written; else a letter is chosen


def _gsm8k(path: pathlib.Path, number: int, row: dict[str, Any]) -> tuple[str, str, int]:
    solution = text_field(path, number, row, "answer")
    if "####" not in solution:
        raise Failed(f"[data] '{path}' line {number}: the answer has no '####'; correct the line")
    return text_field(path, number, row, "question"), extract(solution), 0


def _math500(path: pathlib.Path, number: int, row: dict[str, Any]) -> tuple[str, str, int]:
    return (
        text_field(path, number, row, "problem"),
        text_field(path, number, row, "answer"),
        0,
    )


def _choice(
    path: pathlib.Path, number: int, row: dict[str, Any], field: str, answer: str
) -> tuple[str, str, int]:
    question = text_field(path, number, row, "question")
    options, right = row.get(field), row.get(answer)
    if not (isinstance(options, list) and 2 <= len(options) <= len(LETTERS)):
        raise Failed(
            f"[data] '{path}' line {number}: '{field}' must hold 2 to {len(LETTERS)} options; "
            "correct the line"
        )
    if type(right) is not int or not 0 <= right < len(options):
        raise Failed(
            f"[data] '{path}' line {number}: '{answer}' = {right!r}; expected 0 to "
            f"{len(options) - 1}; correct the line"
        )
    lines = (f"{letter}. {option}" for letter, option in zip(LETTERS, options, strict=False))
    text = _CHOICE.format(question=question, options="\n".join(lines))
    return text, LETTERS[right], len(options)


def _mmlu(path: pathlib.Path, number: int, row: dict[str, Any]) -> tuple[str, str, int]:
    return _choice(path, number, row, "choices", "answer")


def _mmlu_pro(path: pathlib.Path, number: int, row: dict[str, Any]) -> tuple[str, str, int]:
    return _choice(path, number, row, "options", "answer_index")


TASKS = {
    task.name: task
    for task in (
        Task("gsm8k", "GSM8K", "gsm8k_test.jsonl", 1319, _gsm8k, True),
        Task("math500", "MATH-500", "math500_test.jsonl", 500, _math500, True),
        Task("mmlu_stem", "MMLU-STEM", "mmlu_stem_test.jsonl", 3153, _mmlu, False),
        Task("mmlu_pro_math", "MMLU-Pro Math", "mmlu_pro_math.jsonl", 1351, _mmlu_pro, False),
    )
}


def questions_of(task: Task, path: pathlib.Path, limit: int | None) -> list[Question]:
    out: list[Question] = []
    for number, row in rows_of(path):
        if limit is not None and len(out) == limit:
            break
        text, reference, options = task.read(path, number, row)
        out.append(Question(len(out), text, reference, options))
    if not out:
        raise Failed(f"[data] '{path}' holds no questions; expected one JSON object per line")
    return out


def files_of(
    folder: pathlib.Path | None, given: list[str], names: list[str]
) -> dict[str, pathlib.Path]:
    """The file of each task: named by NAME=FILE, or found in the folder."""
    out: dict[str, pathlib.Path] = {}
    for text in given:
        name, equals, file = text.partition("=")
        if name not in TASKS or not equals:
            raise BadUsage(f"[--task] '{text}'; expected NAME=FILE, NAME one of {', '.join(TASKS)}")
        out[name] = pathlib.Path(file)
    for name in names:
        if name not in TASKS:
            raise BadUsage(f"[--tasks] unknown '{name}'; expected {', '.join(TASKS)}")
        if name in out or folder is None:
            continue
        found = [p for end in ("", ".xz", ".gz", ".bz2")
                 if (p := folder / (TASKS[name].file + end)).exists()]  # fmt: skip
        if not found:
            raise Failed(
                f"[data] '{folder}' has no {TASKS[name].file}[.xz]; put it there, name it with "
                f"--task {name}=FILE, or leave the task out with --tasks"
            )
        out[name] = found[0]
    if not out:
        raise BadUsage("[usage] no data; give --data FOLDER or --task NAME=FILE")
    for name, path in out.items():
        if not path.is_file():
            raise Failed(
                f"[data] '{path}' ({name}) does not exist; give the path of a file that does"
            )
    return {name: out[name] for name in TASKS if name in out}
