# SPDX-License-Identifier: Apache-2.0
"""One task's answers on disk: every prompt, answer and verdict as a JSON line, continued after a
kill."""

import pathlib
import time
from typing import Any

from rode._command import Lines, note, whole_lines
from rode.evaluate.answers import extract, same
from rode.evaluate.model import Answer, Answerer
from rode.evaluate.tasks import LETTERS, Question, Task


def verdict(task: Task, question: Question, answer: Answer) -> tuple[str, bool]:
    """The answer in its compared form, and whether it is right."""
    if not task.written:
        return answer.text, answer.text == question.reference
    extracted = extract(answer.text)
    return extracted, same(extracted, question.reference)


def _answers(
    answerer: Answerer, task: Task, part: list[Question], prompts: list[str]
) -> list[Answer]:
    tokens = [answerer.encoded(prompt) for prompt in prompts]
    if task.written:
        return answerer.written(tokens)
    return answerer.chosen(tokens, [list(LETTERS[: question.options]) for question in part])


def answer_all(
    answerer: Answerer, task: Task, questions: list[Question], path: pathlib.Path, size: int
) -> list[dict[str, Any]]:
    """Records of all questions, in their order; those that the file holds are not asked again."""
    done = {record["index"]: record for record in whole_lines(path)}
    done = {index: done[index] for index in sorted(done) if index < len(questions)}
    if done:
        note(f"{task.name}: {len(done)} of {len(questions)} answers are there already")
    prompts = {q.index: answerer.prompt(q.text) for q in questions}
    # Longest first: the batch that needs the most memory comes at once.
    left = sorted(
        (q for q in questions if q.index not in done), key=lambda q: -len(prompts[q.index])
    )
    log = Lines(path, list(done.values()))
    try:
        for first in range(0, len(left), size):
            part = left[first : first + size]
            begun = time.monotonic()
            texts = [prompts[q.index] for q in part]
            answers = _answers(answerer, task, part, texts)
            seconds = (time.monotonic() - begun) / len(part)
            for question, text, answer in zip(part, texts, answers, strict=True):
                extracted, right = verdict(task, question, answer)
                record = {
                    "index": question.index,
                    "prompt": text,
                    "answer": answer.text,
                    "extracted": extracted,
                    "reference": question.reference,
                    "correct": right,
                    "tokens": answer.tokens,
                    "close": answer.close,
                    "alone": answer.alone,
                    "seconds": seconds,
                }
                if answer.scores:
                    record["scores"] = answer.scores
                log.add(record)
                done[question.index] = record
    finally:
        log.close()
    return [done[q.index] for q in questions]


def disagreements(
    answerer: Answerer,
    task: Task,
    questions: list[Question],
    records: list[dict[str, Any]],
    count: int,
) -> dict[str, int]:
    """How many of the first `count` questions have another answer, or another verdict, when they
    are asked alone."""
    out = {"asked": 0, "answers": 0, "verdicts": 0}
    for question, record in zip(questions[:count], records, strict=False):
        answer = _answers(answerer, task, [question], [record["prompt"]])[0]
        out["asked"] += 1
        out["answers"] += answer.text != record["answer"]
        out["verdicts"] += verdict(task, question, answer)[1] != record["correct"]
    return out


def summary(task: Task, records: list[dict[str, Any]]) -> dict[str, Any]:
    right = sum(record["correct"] for record in records)
    seconds = sum(record["seconds"] for record in records)
    out = {
        "count": len(records),
        "paper_count": task.paper_count,
        "correct": right,
        "accuracy": 100 * right / len(records),
        "close": sum(record["close"] for record in records),
        "seconds": seconds,
    }
    if task.written and seconds > 0:
        out["tokens_per_second"] = sum(record["tokens"] for record in records) / seconds
    return out
