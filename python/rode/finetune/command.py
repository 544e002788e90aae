# SPDX-License-Identifier: Apache-2.0
"""`python -m rode finetune`: the options, and the order in which a run is checked and started."""

import argparse
import contextlib
import json
import math
import pathlib
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

import torch

import rode
from rode import _command
from rode._command import BadUsage, Failed, note, read_json, write_json
from rode.finetune import checkpoint, data, encode, memory, protocol, store
from rode.finetune.loop import Diverged, Plan, Trainer

_EXAMPLES = """\
  python -m rode finetune --model Qwen3.5-9B --data gsm8k_train.jsonl.xz --out runs/rode-0
  python -m rode finetune --optimizer muon-rms --seed 1 --model Qwen3.5-9B \\
      --data gsm8k_train.jsonl.xz --split runs/split --out runs/muon-rms-1
  python -m rode finetune ... --out runs/rode-0 --resume       after a kill
  python -m rode finetune ... --steps 800 --set lr=1e-5 --trial      one trial of a sweep
  python -m rode finetune --plan --model Qwen3.5-9B            memory by kind, nothing is loaded
  python -m rode finetune --presets                            rates and search spaces as JSON
"""


def _parser() -> argparse.ArgumentParser:
    paper = protocol.data()["protocol"]
    out = _command.parser(
        "finetune",
        "Full-parameter fine-tuning of a causal language model as in the paper (docs/finetune.md).",
        _EXAMPLES,
    )
    add = out.add_argument
    add("--model", type=pathlib.Path, metavar="DIR", help="checkpoint folder (safetensors)")
    add("--data", type=pathlib.Path, metavar="FILE", help="examples as JSON lines (.xz, .gz too)")
    add("--out", type=pathlib.Path, metavar="DIR", help="folder of the run")
    add(
        "--optimizer",
        default="rode",
        metavar="NAME",
        help=f"optimizer: {', '.join(protocol.presets())} (rode)",
    )
    add(
        "--set",
        action="append",
        default=[],
        metavar="K=V",
        help="option of the optimizer, such as lr=1e-5; may be repeated",
    )
    add("--published", action="store_true", help="RODE as published (Algorithm 1): reproject=every")
    add(
        "--rounding",
        default="nearest",
        choices=protocol.ROUNDINGS,
        help="rounding of bf16 weights (nearest)",
    )
    add(
        "--seed",
        type=int,
        default=0,
        help="seed of the examples' order, dropout and stochastic rounding (0)",
    )
    add("--steps", type=int, default=paper["steps"], help="number of steps (%(default)s)")
    add("--until", type=int, metavar="STEP", help="pause after this step; --resume continues")
    add("--length", type=int, default=paper["length"], help="tokens per example (%(default)s)")
    add("--micro-batch", type=int, default=paper["micro_batch"],
        help="examples per micro-batch (%(default)s)")  # fmt: skip
    add("--accumulation", type=int, default=paper["accumulation"],
        help="micro-batches per step (%(default)s)")  # fmt: skip
    add(
        "--clip",
        type=float,
        default=paper["clip"],
        help="largest norm of the gradient (%(default)s)",
    )
    add(
        "--warmup",
        type=float,
        default=paper["warmup"],
        help="warm-up as a share of the steps (%(default)s)",
    )
    add("--eval-interval", type=int, default=paper["eval_interval"],
        help="steps between validations (%(default)s)")  # fmt: skip
    add("--eval-batch", type=int, default=1, help="examples per validation batch (%(default)s)")
    add(
        "--checkpoint-interval",
        type=int,
        help="steps between checkpoints; default: --eval-interval",
    )
    add(
        "--split",
        type=pathlib.Path,
        metavar="DIR",
        help="folder of the split into training and validation (OUT/split)",
    )
    add("--validation", type=int, default=paper["validation_examples"],
        help="number of examples for validation (%(default)s)")  # fmt: skip
    add(
        "--prompt-field",
        default="question",
        help="name of the field with the question (%(default)s)",
    )
    add("--answer-field", default="answer", help="name of the field with the answer (%(default)s)")
    add(
        "--format",
        default="auto",
        choices=encode.FORMATS,
        help="prompt with the chat template, or plain (auto)",
    )
    checkpoint.add_options(out)
    add(
        "--no-gradient-checkpointing",
        action="store_true",
        help="keep all activations instead of recomputing them",
    )
    add(
        "--no-memory-check",
        action="store_true",
        help="start even if the planned memory does not fit",
    )
    add(
        "--no-rounding-measure",
        action="store_true",
        help="do not measure how many updates bf16 rounding loses",
    )
    add(
        "--trial",
        action="store_true",
        help="trial of a sweep: keep the log and the result, but no model",
    )
    add("--resume", action="store_true", help="continue after the last checkpoint of --out")
    add("--plan", action="store_true", help="print the planned memory by kind, and exit")
    add("--presets", action="store_true", help="print rates and search spaces as JSON, and exit")
    add("--json", action="store_true", help="print the plan or the result as JSON")
    return out


def _check_numbers(given: argparse.Namespace) -> None:
    least = {"steps": 1, "length": 2, "micro_batch": 1, "accumulation": 1, "eval_interval": 1,
             "eval_batch": 1, "checkpoint_interval": 1, "until": 1, "threads": 1, "validation": 1,
             "seed": 0}  # fmt: skip
    for key, low in least.items():
        value = getattr(given, key)
        if value is not None and value < low:
            raise BadUsage(f"[--{key.replace('_', '-')}] {value}; expected {low} or more")
    if not (math.isfinite(given.clip) and given.clip > 0):
        raise BadUsage(f"[--clip] {given.clip}; expected a number > 0")
    if not 0 <= given.warmup < 1:
        raise BadUsage(f"[--warmup] {given.warmup}; expected a share from 0 to below 1")


def _needed(given: argparse.Namespace, *names: str) -> None:
    for name in names:
        if getattr(given, name) is None:
            raise BadUsage(f"[usage] --{name} is missing; see python -m rode finetune --help")


def _asked(
    given: argparse.Namespace, options: dict[str, Any], digest: str, form: str
) -> dict[str, Any]:
    """What run.json records, and a resumed run must repeat."""
    keys = ("optimizer", "seed", "steps", "length", "micro_batch", "accumulation", "clip", "warmup",
            "eval_interval", "eval_batch", "checkpoint_interval", "dtype", "device",
            "threads")  # fmt: skip
    versions = {"rode": rode.__version__, "torch": torch.__version__,
                "transformers": checkpoint.transformers().__version__}  # fmt: skip
    return {
        **{key: getattr(given, key) for key in keys},
        "model": str(given.model.resolve()),
        "options": options,
        "split": digest,
        "format": form,
        "gradient_checkpointing": not given.no_gradient_checkpointing,
        "versions": versions,
    }


def _plan_memory(
    given: argparse.Namespace, options: dict[str, Any], device: torch.device
) -> dict[str, int]:
    config = checkpoint.load_config(given.model)
    empty = checkpoint.empty_model(config, checkpoint.DTYPES[given.dtype])
    return memory.plan(
        given.optimizer,
        options,
        empty,
        config,
        given.length * given.micro_batch,
        not given.no_gradient_checkpointing,
        device.type == "cuda",
    )


def _print_plan(given: argparse.Namespace, kinds: dict[str, int], room: int | None) -> None:
    if given.json and given.plan:
        print(json.dumps({"bytes": kinds, "together": sum(kinds.values()), "available": room}))
    else:
        where = sys.stdout if given.plan else sys.stderr
        print(f"memory planned for {given.optimizer}:\n{memory.table(kinds, room)}", file=where)


def _train(given: argparse.Namespace, options: dict[str, Any]) -> int:
    """Checks everything that can be wrong before the weights are loaded."""
    _needed(given, "model", "data", "out")
    device = checkpoint.pick_device(given.device, stepped=True)
    for path in (given.model, given.data):
        if not path.exists():
            raise Failed(f"[files] '{path}' does not exist; give the path of a file that does")
    checkpoint.check_files(given.model)
    tokenizer = checkpoint.load_tokenizer(given.model)
    config = checkpoint.load_config(given.model)
    encode.check_tokenizer(tokenizer, config.get_text_config().vocab_size)
    form = encode.chosen_format(tokenizer, given.format)
    kinds = _plan_memory(given, options, device)
    room = memory.available(device)
    _print_plan(given, kinds, room)
    if not given.no_memory_check:
        memory.check_fits(kinds, room)
    with store.lock(given.out):
        folder = given.split or given.out / "split"
        fields = (given.prompt_field, given.answer_field)
        split = data.split_of(folder, given.data, *fields, given.validation)
        train, validation = (
            encode.encoded_all(tokenizer, form, part, given.length, what)
            for part, what in ((split.train, "training"), (split.validation, "validation"))
        )
        asked = _asked(given, options, split.digest, form)
        store.begin(given.out, asked, given.resume)
        done = _finished(given.out)
        if done is not None:
            note(f"the run in '{given.out}' is finished; this is its result")
            return _show(given, done)
        sizes = (kinds["weights"], kinds["optimizer state"])
        store.check_room(given.out, *sizes, models=not given.trial)
        model = checkpoint.load_model(given.model, checkpoint.DTYPES[given.dtype], device)
        if not given.no_gradient_checkpointing:
            settings = {"use_reentrant": False}
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=settings)
        keys = ("optimizer", "seed", "options", "split", "format", "steps")
        about = {key: asked[key] for key in keys} | {"base_model": given.model.resolve().name}
        trainer = Trainer(
            given.out, _loop_plan(given, options), model, tokenizer, train, validation, about
        )
        trainer.restore()
        try:
            with _signals(trainer):
                result = trainer.run()
        except Diverged:  # a sweep still learns what was reached
            write_json(given.out / "result.json", {**trainer.result(), "status": "diverged"})
            raise
        write_json(given.out / "result.json", result)
        if given.trial and _finished(given.out):
            store.forget_checkpoints(given.out)
    return _show(given, result)


def _finished(out: pathlib.Path) -> dict[str, Any] | None:
    """The result of a run that has nothing left to do."""
    path = out / "result.json"
    result = dict(read_json(path, "run")) if path.exists() else {}
    return result if result.get("status") == "finished" else None


def _show(given: argparse.Namespace, result: dict[str, Any]) -> int:
    if given.json:
        print(json.dumps(result))
    else:
        best = result["best_validation_loss"]
        shown = "none yet" if best is None else f"{best:.4f} after step {result['best_step']}"
        print(f"{result['status']} after step {result['steps']}; best validation loss {shown}")
    return _command.DONE


@contextlib.contextmanager
def _signals(trainer: Trainer) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM lets the trainer save and end; a second one ends it at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]

    def restore() -> None:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)

    def stop(*_: Any) -> None:
        trainer.stopping = True
        restore()

    for number in numbers:
        signal.signal(number, stop)
    try:
        yield
    finally:
        restore()


def _loop_plan(given: argparse.Namespace, options: dict[str, Any]) -> Plan:
    return Plan(
        optimizer=given.optimizer,
        options=options,
        seed=given.seed,
        steps=given.steps,
        warmup=protocol.warmup_steps(given.steps, given.warmup),
        micro_batch=given.micro_batch,
        accumulation=given.accumulation,
        clip=given.clip,
        eval_interval=given.eval_interval,
        eval_batch=given.eval_batch,
        checkpoint_interval=given.checkpoint_interval,
        until=given.until or given.steps,
        measure_rounding=given.dtype == "bf16" and not given.no_rounding_measure,
        trial=given.trial,
    )


def _work(arguments: list[str]) -> int:
    given = _parser().parse_args(arguments)
    _check_numbers(given)
    if given.presets:
        print(json.dumps(protocol.data(), indent=2))
        return _command.DONE
    if given.checkpoint_interval is None:
        given.checkpoint_interval = given.eval_interval
    if given.threads:
        torch.set_num_threads(given.threads)
    options = protocol.options_of(
        given.optimizer, given.set, given.rounding, given.seed, given.published
    )
    if given.published and given.optimizer != "rode":
        note(f"--published changes RODE only, not {given.optimizer}")
    if given.plan:
        _needed(given, "model")
        # Also for a GPU that is not here.
        away = given.device.startswith("cuda") and not torch.cuda.is_available()
        device = (
            torch.device("cuda") if away else checkpoint.pick_device(given.device, stepped=True)
        )
        room = None if away else memory.available(device)
        _print_plan(given, _plan_memory(given, options, device), room)
        return _command.DONE
    return _train(given, options)


def main(arguments: list[str]) -> int:
    return _command.run(lambda: _work(arguments))
