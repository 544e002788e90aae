# SPDX-License-Identifier: Apache-2.0
"""`python -m rode evaluate agreement`: compares the normaliser with an independent one, math-verify, on
reference solutions, on rewritings of them and on pairs of different answers."""

import argparse
import importlib
import json
import logging
import pathlib
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

from rode import _command
from rode._command import Failed, note, reason
from rode.evaluate.answers import extract, normalise, same, value
from rode.evaluate.tasks import TASKS, files_of
from rode.finetune.data import rows_of

_EXAMPLES = """\
  python -m rode evaluate agreement --data eval
  python -m rode evaluate agreement --data eval --json > agreement.json
"""
Verify = Callable[[str, str], bool]


def math_verify() -> Verify:
    """Whether an answer equals a reference, by math-verify."""
    try:
        module = importlib.import_module("math_verify")
    except ImportError as error:
        raise Failed(
            f"[import] math-verify cannot be imported: {reason(error)}; pip install math-verify"
        ) from None
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)

    def verify(answer: str, reference: str) -> bool:
        texts = (text if text.startswith("$") else f"${text}$" for text in (reference, answer))
        parsed = [module.parse(text, parsing_timeout=5) for text in texts]
        return bool(module.verify(*parsed, timeout_seconds=5))

    return verify


def rewritings(answer: str) -> Iterator[tuple[str, str]]:
    """Other spellings of an answer, each with its kind; all mean the same."""
    yield "in a sentence", f"${answer}$."
    yield "with spaces", f"  {answer} "
    if "\\frac" in answer:
        yield "dfrac", answer.replace("\\frac", "\\dfrac")
    if "(" in answer and "\\left" not in answer:
        yield "left, right", answer.replace("(", "\\left(").replace(")", "\\right)")
    number = value(normalise(answer))
    if number is not None and number.denominator == 1:
        yield "decimal point", f"{number}.0"
        if abs(number) >= 1000:
            yield "thousands", f"{int(number):,}"
        yield "dollars", f"\\${number}"
    elif number is not None:
        above, below = number.numerator, number.denominator
        yield "slash", f"{above}/{below}"
        if 10**6 % below == 0:
            yield "decimal", str(above / below)
        if abs(above) > below:
            sign = "-" if above < 0 else ""
            yield (
                "mixed number",
                f"{sign}{abs(above) // below}\\frac{{{abs(above) % below}}}{{{below}}}",
            )
    if "," in answer and re.fullmatch(r"[-\d, ]+", answer) and value(normalise(answer)) is None:
        yield "another order", ",".join(reversed(answer.split(",")))
    if re.fullmatch(r"[a-z0-9^]+ ?\+ ?\d+", answer):
        yield "terms swapped", "+".join(reversed(answer.split("+")))


def wrong(answers: list[str], count: int) -> Iterator[tuple[str, str]]:
    """Pairs of answers to different questions, and numbers that are off by one."""
    chosen = random.Random(0)
    for _ in range(count):
        one, other = chosen.sample(answers, 2)
        if one != other:
            yield one, other
    for answer in answers:
        if re.fullmatch(r"-?\d+", answer):
            yield answer, str(int(answer) + 1)


def cases(files: dict[str, pathlib.Path], pairs: int) -> Iterator[tuple[str, str, str]]:
    """What is compared: a row of the table, an answer, a reference."""
    if "gsm8k" in files:
        for path in [files["gsm8k"], *_beside(files["gsm8k"])]:
            for _, row in rows_of(path):
                reference = row["answer"].rsplit("####", 1)[1].strip()
                yield "GSM8K: the solution's answer", extract(row["answer"]), reference
    if "math500" in files:
        rows = [row for _, row in rows_of(files["math500"])]
        for row in rows:
            yield "MATH-500: the solution's answer", extract(row["solution"]), row["answer"]
        for row in rows:
            yield "MATH-500: the reference with itself", row["answer"], row["answer"]
        for row in rows:
            for kind, text in rewritings(row["answer"]):
                yield f"MATH-500: {kind}", text, row["answer"]
        for answer, other in wrong([row["answer"] for row in rows], pairs):
            yield "MATH-500: answers of different questions", answer, other


def _beside(path: pathlib.Path) -> list[pathlib.Path]:
    """GSM8K's training file next to the test file."""
    other = path.with_name(path.name.replace("test", "train"))
    return [other] if other != path and other.exists() else []


def compare(found: Iterator[tuple[str, str, str]], verify: Verify) -> dict[str, Any]:
    rows: dict[str, dict[str, int]] = {}
    different = []
    known: dict[tuple[str, str], tuple[bool, bool]] = {}
    for kind, answer, reference in found:
        if (answer, reference) not in known:
            known[answer, reference] = (same(answer, reference), verify(answer, reference))
        own, other = known[answer, reference]
        row = rows.setdefault(kind, {"compared": 0, "same_here": 0, "same_there": 0, "agree": 0})
        row["compared"] += 1
        row["same_here"] += own
        row["same_there"] += other
        row["agree"] += own == other
        if own != other:
            different.append({"kind": kind, "answer": answer, "reference": reference, "here": own})
    return {"rows": rows, "disagreements": different}


def shown(result: dict[str, Any]) -> str:
    lines = [
        "| compared | pairs | same here | same by math-verify | agree |",
        "|---|---|---|---|---|",
    ]
    for kind, row in result["rows"].items():
        numbers = " | ".join(
            str(row[key]) for key in ("compared", "same_here", "same_there", "agree")
        )
        lines.append(f"| {kind} | {numbers} |")
    if result["disagreements"]:
        lines += ["", "| answer | reference | here | math-verify |", "|---|---|---|---|"]
    seen = set()
    for case in result["disagreements"]:
        texts = tuple(
            f"`{case[key].strip()}`".replace("|", "\\|") for key in ("answer", "reference")
        )
        if texts not in seen:
            seen.add(texts)
            words = ("same", "different") if case["here"] else ("different", "same")
            lines.append(f"| {texts[0]} | {texts[1]} | {words[0]} | {words[1]} |")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    parser = _command.parser(
        "evaluate agreement",
        "Compare the answer normaliser with math-verify, on reference solutions.",
        _EXAMPLES,
    )
    _add_options(parser)
    given = parser.parse_args(arguments)
    verify = math_verify()
    names = [name for name in TASKS if TASKS[name].written]
    files = files_of(given.data, given.task, names)
    result = compare(cases(files, given.pairs), verify)
    print(json.dumps(result, indent=2) if given.json else shown(result))
    own = [row for kind, row in result["rows"].items() if "solution" in kind or "itself" in kind]
    missed = sum(row["compared"] - row["same_here"] for row in own)
    if missed:
        note(f"{missed} reference answers do not match themselves")
    return _command.FAILED if missed else _command.DONE


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data", type=pathlib.Path, metavar="DIR", help="folder with the benchmarks' files"
    )
    parser.add_argument("--task", action="append", default=[], metavar="NAME=FILE")
    parser.add_argument(
        "--pairs", type=int, default=1000, help="number of pairs of different answers (%(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print counts and cases as JSON")
