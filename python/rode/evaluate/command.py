# SPDX-License-Identifier: Apache-2.0
"""`python -m rode evaluate`: a model on the four benchmarks; also `table` and `agreement`."""

import argparse
import json
import pathlib
from typing import Any

import torch

import rode
from rode import _command
from rode._command import BadUsage, Failed, digest_of, note, read_json, write_json
from rode.evaluate import agreement, records, table
from rode.evaluate.model import Answerer
from rode.evaluate.tasks import TASKS, Question, files_of, questions_of
from rode.finetune import checkpoint, encode, memory, store

NEW_TOKENS = 512
_EXAMPLES = """\
  python -m rode evaluate --run runs/rode-0 --data eval       the run's best model, four benchmarks
  python -m rode evaluate --model Qwen3.5-9B --data eval --tasks gsm8k --out eval/base
  python -m rode evaluate ... --resume                        after a kill
  python -m rode evaluate table runs/*                        the paper's table
  python -m rode evaluate agreement --data eval               the normaliser beside math-verify
"""


def _parser() -> argparse.ArgumentParser:
    out = _command.parser(
        "evaluate",
        "Greedy generation for GSM8K and MATH-500, letter log-likelihood for MMLU-STEM and MMLU-Pro\n"
        "Math (docs/finetune.md). Subcommands: table, agreement.",
        _EXAMPLES,
    )
    add = out.add_argument
    add(
        "--run", type=pathlib.Path, metavar="DIR", help="folder of a run of python -m rode finetune"
    )
    add("--model", type=pathlib.Path, metavar="DIR", help="any checkpoint folder, instead of --run")
    add("--data", type=pathlib.Path, metavar="DIR", help="folder with the benchmarks' files")
    add(
        "--task",
        action="append",
        default=[],
        metavar="NAME=FILE",
        help="file of one benchmark; may be repeated",
    )
    add(
        "--tasks",
        default=",".join(TASKS),
        metavar="LIST",
        help="benchmarks to take from --data (%(default)s)",
    )
    add("--out", type=pathlib.Path, metavar="DIR", help="default: RUN/evaluation")
    add("--batch", type=int, default=8, help="number of questions per batch (%(default)s)")
    add("--max-new-tokens", type=int, default=NEW_TOKENS,
        help="largest number of tokens per answer (%(default)s)")  # fmt: skip
    add("--limit", type=int, metavar="N", help="evaluate only the first N questions of each file")
    add(
        "--format",
        default="auto",
        choices=encode.FORMATS,
        help="format of the prompts; auto: as in training (auto)",
    )
    checkpoint.add_options(out)
    add("--check-batch", type=int, default=0, metavar="N",
        help="repeat N questions with batch size 1 and count changed answers")  # fmt: skip
    add("--resume", action="store_true", help="keep the answers that are in --out already")
    add("--json", action="store_true", help="print results.json instead of a table")
    return out


def _model_folder(given: argparse.Namespace) -> tuple[pathlib.Path, dict[str, Any]]:
    """The model and what its run says of it."""
    if (given.run is None) == (given.model is None):
        raise BadUsage("[usage] give either --run or --model; see python -m rode evaluate --help")
    if given.run is None:
        return given.model, {}
    folder = given.run / "best"
    if not folder.is_dir():
        raise Failed(
            f"[run] '{given.run}' has no best model yet; expected a run of python -m rode finetune "
            "that has been validated at least once"
        )
    return folder, dict(read_json(folder / "finetune.json", "run"))


def _shown(results: dict[str, Any]) -> str:
    lines = [f"{'benchmark':<14} {'right':>6} {'of':>6} {'accuracy':>9}"]
    for name, row in results["tasks"].items():
        lines.append(
            f"{TASKS[name].label:<14} {row['correct']:>6} {row['count']:>6} {row['accuracy']:>8.2f}%"
        )
    return "\n".join(lines)


def _note_counts(
    questions: dict[str, list[Question]], files: dict[str, pathlib.Path], limit: int | None
) -> None:
    for name, rows in questions.items():
        task = TASKS[name]
        if limit is None and len(rows) != task.paper_count:
            note(
                f"{task.label}: '{files[name]}' has {len(rows)} questions; the paper has "
                f"{task.paper_count}"
            )


def _checked(folder: pathlib.Path, dtype: torch.dtype, device: torch.device) -> Any:
    """The tokenizer of a model whose files are whole and whose weights fit."""
    checkpoint.check_files(folder)
    tokenizer = checkpoint.load_tokenizer(folder)
    config = checkpoint.load_config(folder)
    encode.check_tokenizer(tokenizer, config.get_text_config().vocab_size)
    empty = checkpoint.empty_model(config, dtype)
    weights = sum(p.numel() for p in empty.parameters()) * dtype.itemsize
    remedy = "use a larger device, or --dtype bf16"
    memory.check_fits({"weights": weights}, memory.available(device), remedy)
    return tokenizer


def _evaluate(given: argparse.Namespace) -> int:
    for key in ("batch", "max_new_tokens", "limit", "threads"):
        value = getattr(given, key)
        if value is not None and value < 1:
            raise BadUsage(f"[--{key.replace('_', '-')}] {value}; expected 1 or more")
    folder, about = _model_folder(given)
    out = given.out or (given.run / "evaluation" if given.run else None)
    if out is None:
        raise BadUsage("[usage] --out is missing; see python -m rode evaluate --help")
    if given.threads:
        torch.set_num_threads(given.threads)
    files = files_of(given.data, given.task, [name for name in given.tasks.split(",") if name])
    questions = {name: questions_of(TASKS[name], path, given.limit) for name, path in files.items()}
    _note_counts(questions, files, given.limit)
    device = checkpoint.pick_device(given.device, stepped=False)
    dtype = checkpoint.DTYPES[given.dtype]
    tokenizer = _checked(folder, dtype, device)
    asked = given.format if given.format != "auto" else about.get("format", "auto")
    form = encode.chosen_format(tokenizer, asked)
    settings = {
        "model": str(folder.resolve()),
        "step": about.get("step"),
        "format": form,
        "dtype": given.dtype,
        "max_new_tokens": given.max_new_tokens,
        "limit": given.limit,
        "files": {name: digest_of(path) for name, path in files.items()},
    }
    with store.lock(out):
        store.begin(out, settings, given.resume)
        model = checkpoint.load_model(folder, dtype, device)
        settle = dtype == torch.float32
        answerer = Answerer(model, tokenizer, form, given.max_new_tokens, settle)
        results: dict[str, Any] = {
            "optimizer": about.get("optimizer"),
            "seed": about.get("seed"),
            "best_validation_loss": about.get("validation_loss"),
            "options": about.get("options"),
            "split": about.get("split"),
            "steps": about.get("steps"),
            **({"base_model": about["base_model"]} if "base_model" in about else {}),
            **settings,
            "batch": given.batch,
            "device": str(device),
            "versions": {"rode": rode.__version__, "torch": torch.__version__,
                         "transformers": checkpoint.transformers().__version__},
            "tasks": {},
        }  # fmt: skip
        for name, rows in questions.items():
            task = TASKS[name]
            answered = records.answer_all(answerer, task, rows, out / f"{name}.jsonl", given.batch)
            results["tasks"][name] = records.summary(task, answered)
            if given.check_batch:
                counted = records.disagreements(answerer, task, rows, answered, given.check_batch)
                results["tasks"][name]["asked_alone"] = counted
        write_json(out / "results.json", results)
    print(json.dumps(results, indent=2) if given.json else _shown(results))
    return _command.DONE


def _work(arguments: list[str]) -> int:
    if arguments[:1] == ["table"]:
        return table.main(arguments[1:])
    if arguments[:1] == ["agreement"]:
        return agreement.main(arguments[1:])
    return _evaluate(_parser().parse_args(arguments))


def main(arguments: list[str]) -> int:
    return _command.run(lambda: _work(arguments))
